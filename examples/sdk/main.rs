//! Eleven short programs. `cargo run --example sdk -- hello --redis redis://127.0.0.1:6379`; without a name, all of
//! them. Each has a scheduler of its own in this process; `minutehand dev` gives a Redis to try them with.

#[path = "programs.rs"]
mod programs;

use anyhow::Context;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let (mut redis, mut wanted) = ("redis://127.0.0.1:6379".to_owned(), Vec::new());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--redis" => redis = words.next().context("--redis needs a URL")?,
            name => wanted.push(name.to_owned()),
        }
    }
    for (name, program) in programs::ALL {
        if wanted.is_empty() || wanted.iter().any(|one| one == name) {
            println!("# {name}");
            program(redis.clone(), "examples".to_owned()).await?;
        }
    }
    Ok(())
}
