//! The whole of a namespace as it lies in Redis, to be compared: by type, in an order of its own.

use crate::keys::prefixes;
use crate::store::{At, Reply, Space};
use bytes::Bytes;
use std::collections::BTreeMap;

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// A string.
    Text(Bytes),
    /// A list.
    List(Vec<Bytes>),
    /// Members, or fields with values, or members with scores.
    Pairs(BTreeMap<Bytes, Bytes>),
    /// A stream: ids, and fields in one text each.
    Stream(Vec<(Bytes, String)>),
}

/// Every key of the namespace with what it holds. Only for a single server, and for little data.
pub async fn snapshot(space: &Space) -> BTreeMap<String, Held> {
    let mut out = BTreeMap::new();
    for key in names(space).await {
        if let Some(held) = held(space, &key).await {
            out.insert(String::from_utf8_lossy(&key).into_owned(), held);
        }
    }
    out
}

/// The names of all keys of the namespace, sorted.
pub async fn names(space: &Space) -> Vec<Bytes> {
    let mut out = Vec::new();
    for prefix in prefixes(space.namespace()) {
        let pattern = Bytes::from(format!("{prefix}*"));
        let mut cursor = Bytes::from_static(b"0");
        loop {
            let word = Bytes::from_static;
            let args = vec![cursor, word(b"MATCH"), pattern.clone(), word(b"COUNT"), word(b"1000")];
            let told = space.store().command("SCAN", At::Any, args).await.expect("scan");
            let mut told = told.fields("SCAN").expect("a list");
            cursor = told.bytes("cursor").expect("a cursor");
            let keys = told.array("keys").expect("keys").into_iter();
            out.extend(keys.map(|key| key.bytes("SCAN").expect("a name")));
            if &cursor[..] == b"0" {
                break;
            }
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

async fn held(space: &Space, key: &Bytes) -> Option<Held> {
    let ask = async |name: &'static str, more: &[&'static str]| {
        let mut args = vec![key.clone()];
        args.extend(more.iter().map(|arg| Bytes::from_static(arg.as_bytes())));
        space.store().command(name, At::Key(key), args).await.expect(name)
    };
    let list = |reply: Reply| -> Vec<Bytes> {
        reply.array("").expect("a list").into_iter().map(|item| item.bytes("").expect("bytes")).collect()
    };
    let kind = ask("TYPE", &[]).await.text("TYPE").expect("a type");
    Some(match kind.as_str() {
        "string" => Held::Text(ask("GET", &[]).await.bytes("GET").ok()?),
        "list" => Held::List(list(ask("LRANGE", &["0", "-1"]).await)),
        "set" => {
            let members = list(ask("SMEMBERS", &[]).await);
            Held::Pairs(members.into_iter().map(|member| (member, Bytes::new())).collect())
        }
        "hash" => {
            let flat = list(ask("HGETALL", &[]).await);
            Held::Pairs(flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        }
        "zset" => {
            let told = ask("ZRANGE", &["0", "-1", "WITHSCORES"]).await;
            // The protocol's third version answers pairs.
            let flat: Vec<Bytes> = told
                .array("ZRANGE")
                .expect("a list")
                .into_iter()
                .flat_map(|item| match item {
                    Reply::Array(pair) => pair,
                    item => vec![item],
                })
                .map(|item| item.bytes("ZRANGE").expect("bytes"))
                .collect();
            Held::Pairs(flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        }
        "stream" => {
            let entries = ask("XRANGE", &["-", "+"]).await.array("XRANGE").expect("entries");
            let entry = |entry: Reply| {
                let mut parts = entry.fields("XRANGE").expect("an entry");
                let id = parts.bytes("id").expect("an id");
                (id, format!("{:?}", parts.next("fields")))
            };
            Held::Stream(entries.into_iter().map(entry).collect())
        }
        _ => return None,
    })
}
