//! A Lua script that is called by digest.

use std::sync::OnceLock;

use sha1::{Digest, Sha1};

/// One script: its name in metrics and errors, its text, and its digest, made on first use.
#[derive(Debug)]
pub struct Script {
    /// `family.verb`, as in metrics, spans and errors.
    pub name: &'static str,
    /// The whole text as the server gets it.
    pub body: &'static str,
    sha: OnceLock<String>,
}

impl Script {
    /// A script; costs nothing until it is called.
    pub const fn new(name: &'static str, body: &'static str) -> Self {
        Self { name, body, sha: OnceLock::new() }
    }

    /// The digest by which the server knows the script: lower-case hex of SHA-1.
    pub fn sha1(&self) -> &str {
        self.sha.get_or_init(|| format!("{:x}", Sha1::digest(self.body.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_one_redis_makes() {
        static ONE: Script = Script::new("test.one", "return 1");
        assert_eq!(ONE.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
