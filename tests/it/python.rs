//! What needs Python: the API fuzzed from its own document, and the Python SDK against a real server.
//!
//! `MINUTEHAND_PYTHON` names a Python with schemathesis (`scripts/get-python` makes one). Without one these tests say that
//! they were left out; where `CI` is set they fail instead.

use minutehand::client::{Client, NewTask};
use minutehand::http::{Api, Door, Ops, router, serve};
use minutehand::model::QueueName;
use minutehand::pod::{Pod, PodSettings};
use minutehand::testing::bed::Bed;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("MINUTEHAND_PYTHON").map(PathBuf::from);
    let found = named.or_else(|| Some(root.join("target/py/bin/python"))).filter(|path| path.exists());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "no Python: scripts/get-python makes one");
        eprintln!(
            "left out: there is no Python with schemathesis; scripts/get-python makes one in target/py"
        );
    }
    found
}

struct Running {
    base: String,
    stop: CancellationToken,
    pod: tokio::task::JoinHandle<()>,
    _bed: Bed,
}

async fn start(poll_wait_ms: u64) -> Running {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let stop = CancellationToken::new();
    let template = NewTask::to(QueueName::new("any").unwrap());
    let api = Api::new(Client::new(space.clone()), template, Door::Loopback, stop.clone())
        .poll_wait(Duration::from_millis(poll_wait_ms));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener, router(Ops::default(), Some(api)), None, stop.clone()));
    let running = stop.clone();
    let pod = tokio::spawn(async move {
        Pod::new(space, PodSettings::default()).run(running).await.unwrap();
    });
    Running { base, stop, pod, _bed: bed }
}

async fn run(mut command: tokio::process::Command, limit: Duration) -> (bool, String) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let ended = tokio::time::timeout(limit, command.spawn().unwrap().wait_with_output()).await;
    let ended = ended.expect("it takes too long").unwrap();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    (ended.status.success(), text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_keeps_to_its_document_whatever_it_is_sent() {
    let Some(python) = python() else { return };
    let running = start(20).await;
    let dir = std::env::temp_dir().join(format!("mh-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("hooks.py"), include_str!("schemathesis_hooks.py")).unwrap();
    let seed = std::env::var("MINUTEHAND_SEED").unwrap_or_else(|_| fastrand::u32(..).to_string());
    eprintln!("MINUTEHAND_SEED={seed}");
    let mut command = tokio::process::Command::new(python.with_file_name("schemathesis"));
    // Streams do not end by themselves; what is in a bulk body no document can say.
    command
        .current_dir(&dir)
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", &dir)
        .arg("run")
        .arg(format!("{}/openapi.json", running.base))
        .args([
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
            "--exclude-path",
            "/v1/events",
            "--exclude-path",
            "/v1/subscriptions/{name}/outcomes",
            "--exclude-path",
            "/v1/tasks:bulk",
            // It would let nothing more in.
            "--exclude-path",
            "/v1/quota",
            "--max-examples",
            "12",
            "--workers",
            "2",
            "--request-timeout",
            "30",
            "--suppress-health-check",
            "all",
            "--seed",
            &seed,
            "--no-color",
        ]);
    let (good, text) = run(command, Duration::from_secs(280)).await;
    let _ = std::fs::remove_dir_all(&dir);
    running.stop.cancel();
    running.pod.await.unwrap();
    assert!(good, "{text}");
    assert!(text.contains("Tested:"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_sdk_submits_polls_and_acks() {
    let Some(python) = python() else { return };
    let running = start(30_000).await;
    let mut command = tokio::process::Command::new(&python);
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/python");
    command.current_dir(&sdk).env("MINUTEHAND_URL", &running.base).env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["-m", "unittest", "discover", "-v", "-s", "tests", "-t", "."]);
    let (good, text) = run(command, Duration::from_secs(120)).await;
    running.stop.cancel();
    running.pod.await.unwrap();
    assert!(good && text.contains("Ran 6 tests"), "{text}");
}
