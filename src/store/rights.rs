//! Which right is missing: the server says of a script only that it may not do what it does.

use super::script;
use super::{Space, StoreError};
use crate::keys::{Guard, prefixes};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// Every command that our scripts run, read from their texts.
pub fn commands() -> &'static BTreeSet<&'static str> {
    static COMMANDS: OnceLock<BTreeSet<&'static str>> = OnceLock::new();
    COMMANDS.get_or_init(|| script::ALL.iter().flat_map(|script| script.commands()).collect())
}

impl Space {
    /// Fails when the user lacks a right that some script will need, before any of them stops half-way for it.
    pub(super) async fn check_rights(&self) -> Result<(), StoreError> {
        let guard = Guard::room(self.namespace(), "spread");
        match self.missing(&guard).await {
            Ok(names) if !names.is_empty() => Err(StoreError::NoPermission { what: self.said(&names) }),
            // A server that cannot tell is no reason not to start.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn missing(&self, guard: &Guard) -> Result<Vec<String>, StoreError> {
        let mut args = vec![Bytes::new()];
        args.extend(commands().iter().map(|name| Bytes::from_static(name.as_bytes())));
        let mut fields = self
            .store()
            .call(&script::RIGHTS, guard.keys.clone(), args)
            .await?
            .fields(script::RIGHTS.name)?;
        fields.bytes("a word")?;
        fields.int("the time")?;
        let mut names = Vec::new();
        while fields.left() > 0 {
            names.push(fields.text("a command")?.to_lowercase());
        }
        Ok(names)
    }

    fn said(&self, names: &[String]) -> String {
        let [buckets, rooms] = prefixes(self.namespace());
        let upper: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
        let mut said = format!("{}: the user's ACL lacks +{}", upper.join(", "), names.join(" +"));
        if names.iter().any(|name| name == "spublish") {
            said += &format!(" (and &{buckets}* and &{rooms}* for its channels)");
        }
        said
    }

    /// What a refusal for want of a right is about, as precisely as it can be found: all commands that are missing,
    /// or the patterns of keys and channels.
    pub(super) async fn name_right(&self, guard: &Guard, what: String) -> String {
        let [buckets, rooms] = prefixes(self.namespace());
        if what.contains("key pattern") {
            return format!("{what}; it needs ~{buckets}* and ~{rooms}*");
        }
        if what.contains("channel pattern") {
            return format!("{what}; it needs &{buckets}* and &{rooms}*");
        }
        match self.missing(guard).await {
            Ok(names) if !names.is_empty() => self.said(&names),
            // The script cannot be run either, or nothing is found: the server's words are what there is.
            Ok(_) | Err(_) => what,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_scripts_are_found_in_their_texts() {
        let all = commands();
        for name in
            ["TIME", "HSET", "ZADD", "XADD", "SPUBLISH", "UNLINK", "GETRANGE", "STRLEN", "XLEN", "TYPE"]
        {
            assert!(all.contains(name), "{name}");
        }
        // The script that asks takes at most so many.
        assert!(all.len() <= 200 && all.iter().all(|name| name.len() <= 20), "{all:?}");
        // Names in tables, as in `call(SIZE[t], …)`, are not found by themselves: there must be none beyond these.
        for script in script::ALL {
            // A comparison is none.
            for rest in script.body.replace("== '", "").split("= '").skip(1) {
                let name = rest.split('\'').next().unwrap_or("");
                let command = name.len() > 2 && name.bytes().all(|byte| byte.is_ascii_uppercase());
                assert!(!command || all.contains(name), "{} calls {name} by a table", script.name);
            }
        }
    }
}
