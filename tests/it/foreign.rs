//! A key of another type where one of ours is or would be.

use std::collections::BTreeMap;

use bytes::Bytes;
use minutehand::store::{At, Space, StoreError};
use minutehand::testing::fixtures::bucket;
use minutehand::testing::snapshot::{Held, snapshot};

/// A foreign key that was planted; what was there before waits beside it.
pub struct Planted<'a> {
    space: &'a Space,
    key: Bytes,
    aside: Bytes,
    moved: bool,
    before: BTreeMap<String, Held>,
}

impl<'a> Planted<'a> {
    /// Plants a list under this name of the bucket, a type that no key of a bucket has.
    pub async fn at(space: &'a Space, name: &str) -> Planted<'a> {
        let (key, aside) = (space.guard(bucket()).key(name), space.guard(bucket()).key("aside"));
        let store = space.store();
        let moved = store.command("RENAME", At::Key(&key), vec![key.clone(), aside.clone()]).await.is_ok();
        let list = vec![key.clone(), Bytes::from_static(b"foreign")];
        store.command("RPUSH", At::Key(&key), list).await.unwrap();
        let before = snapshot(space).await;
        Planted { space, key, aside, moved, before }
    }

    fn name(&self) -> String {
        String::from_utf8_lossy(&self.key).into_owned()
    }

    /// A call must have failed, and its error must name this key.
    #[track_caller]
    pub fn refuses<T: std::fmt::Debug>(&self, told: Result<T, StoreError>) {
        match told {
            Err(error @ StoreError::WrongType { .. }) => {
                let text = error.to_string();
                let named = format!("key {} holds a list, expected a ", self.name());
                assert!(text.contains(&named), "{} is not named in: {text}", self.name());
            }
            other => panic!("{} holds a list, and the call answered {other:?}", self.name()),
        }
    }

    /// Nothing in the namespace has changed since.
    pub async fn nothing_changed(&self) {
        let after = snapshot(self.space).await;
        for (key, held) in &self.before {
            assert_eq!(after.get(key), Some(held), "{key} changed while {} was foreign", self.name());
        }
        assert_eq!(after.len(), self.before.len(), "there are other keys while {} was foreign", self.name());
    }

    /// The same, but for what a claim notes in passing: the clock and its cursors.
    pub async fn nothing_moved(&self) {
        let after = snapshot(self.space).await;
        let meta = String::from_utf8_lossy(&self.space.guard(bucket()).keys[0]).into_owned();
        for (key, held) in self.before.iter().filter(|(key, _)| **key != meta) {
            assert_eq!(after.get(key), Some(held), "{key} changed while {} was foreign", self.name());
        }
    }

    /// Takes the foreign key away and puts back what was there.
    pub async fn undo(self) {
        let store = self.space.store();
        store.command("DEL", At::Key(&self.key), vec![self.key.clone()]).await.unwrap();
        if self.moved {
            let back = vec![self.aside.clone(), self.key.clone()];
            store.command("RENAME", At::Key(&self.key), back).await.unwrap();
        }
    }
}
