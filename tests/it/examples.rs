//! The programs of `examples/sdk`, on a real server.

#[path = "../../examples/sdk/programs.rs"]
mod programs;

use minutehand::testing::bed::Bed;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn every_example_does_what_it_says() {
    let bed = Bed::shared().await.unwrap();
    for (name, program) in programs::ALL {
        let run = program(bed.settings().url, bed.namespace().to_owned());
        match tokio::time::timeout(Duration::from_secs(30), run).await {
            Ok(done) => done.unwrap_or_else(|error| panic!("{name}: {error:#}")),
            Err(_) => panic!("{name} does not end"),
        }
    }
}
