//! `minutehand token` and `minutehand notes`: who may come in by HTTP, and what operators did.

use super::args::{NotesArgs, Output, TokenCommand};
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::client::NewToken;
use crate::model::UnixMs;
use crate::model::slice::parse_duration_ms;
use crate::settings::Loaded;
use crate::store::access::TokenRecord;
use serde_json::{Value, json};

fn shown(token: &TokenRecord) -> Value {
    json!({
        "id": token.id,
        "name": token.name,
        "roles": token.roles,
        "queues": token.queues,
        "created": UnixMs(token.created_ms).to_string(),
        "created_by": token.created_by,
        "expires": token.expires_ms.map(|ms| UnixMs(ms).to_string()),
    })
}

/// Makes, lists or revokes tokens.
pub async fn run(command: &TokenCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    match command {
        TokenCommand::Create { name, role, queue, expires } => {
            let new = NewToken {
                name: name.clone(),
                roles: role.iter().map(|role| role.parse()).collect::<Result<_, _>>()?,
                queues: queue.iter().map(|queue| queue.parse()).collect::<Result<_, _>>()?,
                expires_after_ms: expires
                    .as_deref()
                    .map(|text| parse_duration_ms("expires", text))
                    .transpose()?,
            };
            let client = connect::client(loaded).await?;
            let (token, record) = client.token_create(new, &connect::who()).await?;
            let mut value = shown(&record);
            value["token"] = token.to_string().into();
            render::show(output, &value, |_| token.to_string());
            if output == Output::Table {
                eprintln!("note: it is shown this once; it goes into the header Authorization: Bearer TOKEN");
            }
        }
        TokenCommand::List => {
            let tokens = connect::client(loaded).await?.tokens().await?;
            let value = Value::Array(tokens.iter().map(shown).collect());
            render::show(output, &value, |_| {
                if tokens.is_empty() {
                    return "no tokens".to_owned();
                }
                let rows = tokens.iter().map(|token| {
                    let roles: Vec<&str> = token.roles.iter().map(|role| role.name()).collect();
                    let queues: Vec<&str> = token.queues.iter().map(|queue| queue.as_str()).collect();
                    vec![
                        token.id.clone(),
                        render::safe(&token.name),
                        roles.join(" "),
                        if queues.is_empty() { "all".to_owned() } else { render::safe(&queues.join(" ")) },
                        UnixMs(token.created_ms).to_string(),
                        render::safe(&token.created_by),
                        token.expires_ms.map_or_else(|| "never".to_owned(), |ms| UnixMs(ms).to_string()),
                    ]
                });
                render::table(&["id", "name", "roles", "queues", "created", "by", "expires"], rows.collect())
            });
        }
        TokenCommand::Revoke { id } => {
            if !connect::client(loaded).await?.token_revoke(id, &connect::who()).await? {
                return Err(CliError::not_found(format!(
                    "there is no token with the id {}",
                    render::safe(id)
                ))
                .hint("`minutehand token list` shows those there are"));
            }
            render::show(output, &json!({ "revoked": id }), |_| {
                format!("token {} is revoked", render::safe(id))
            });
        }
    }
    Ok(Exit::Ok)
}

/// Tells what operators did.
pub async fn notes(args: &NotesArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let notes = connect::client(loaded).await?.notes(None, args.limit as usize).await?;
    let value = serde_json::to_value(&notes).map_err(|error| CliError::failed(error.to_string()))?;
    render::show(output, &value, |_| {
        if notes.is_empty() {
            return "no notes".to_owned();
        }
        let rows = notes.iter().map(|note| {
            [
                note.at.to_string(),
                note.who.clone(),
                note.action.clone(),
                note.target.clone(),
                note.detail.clone(),
            ]
            .map(|text| render::safe(&text))
            .to_vec()
        });
        render::table(&["at", "who", "did", "to", "more"], rows.collect())
    });
    Ok(Exit::Ok)
}
