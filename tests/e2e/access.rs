//! Who is let in by HTTP: the program does not open its doors by accident.

use super::program;
use minutehand::testing::bed::Bed;
use minutehand::testing::process::Running;
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

fn address(serve: &Running) -> String {
    let line = serve.until_said("listening on ", SOON);
    let (scheme, rest) = line.trim_start_matches("listening on ").split_once("://").unwrap();
    let port = rest.rsplit_once(':').unwrap().1.to_owned();
    format!("{scheme}://localhost:{port}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_others_reach_takes_a_token_and_speaks_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let program = program(&bed.limited_url(), bed.namespace());
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls");
    let (cert, key) =
        (files.join("cert.pem").display().to_string(), files.join("key.pem").display().to_string());

    // Without a token it does not start, and says what to do; nor with half of what TLS takes.
    let refused = program.run(&["serve", "--listen", "0.0.0.0:0", "--output", "json"]);
    assert_eq!((refused.code, refused.error()["code"].as_str()), (Some(2), Some("no_token")), "{refused:?}");
    assert!(refused.error()["hint"].as_str().unwrap().contains("token create"));
    let refused = program.run(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", &cert]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let refused = program.run(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", &key, "--tls-key", &key]);
    assert!(refused.code == Some(2) && refused.err.contains("no certificate"), "{refused:?}");

    let made = program.json(&[
        "token",
        "create",
        "--name",
        "ci",
        "--role",
        "submit",
        "--queue",
        "mail",
        "--expires",
        "1h",
    ]);
    let token = made["token"].as_str().unwrap().to_owned();
    assert_eq!(program.json(&["token", "list"])[0]["id"], made["id"]);
    let serve =
        program.start("pod", &["serve", "--listen", "0.0.0.0:0", "--tls-cert", &cert, "--tls-key", &key]);
    let base = address(&serve);
    assert!(base.starts_with("https://"));
    let trusted = reqwest::Certificate::from_pem(&std::fs::read(&cert).unwrap()).unwrap();
    let http = reqwest::Client::builder().tls_certs_only([trusted]).timeout(SOON).build().unwrap();
    let submit = |token: Option<&str>| {
        let request = http.post(format!("{base}/v1/tasks")).header("content-type", "application/json");
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.body(r#"{"queue":"mail","in_ms":60000}"#).send()
    };
    assert_eq!(submit(None).await.unwrap().status().as_u16(), 401);
    assert_eq!(submit(Some(&token)).await.unwrap().status().as_u16(), 201);
    assert_eq!(http.get(format!("{base}/healthz")).send().await.unwrap().status().as_u16(), 200);

    // What was done is written down; a revoked token is soon worthless.
    program.json(&["freeze", "--queue", "mail", "--why", "trial"]);
    program.json(&["token", "revoke", made["id"].as_str().unwrap()]);
    let notes = program.json(&["notes"]);
    let actions: Vec<&str> =
        notes.as_array().unwrap().iter().map(|note| note["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["token.revoke", "freeze", "token.create"]);
    let revoked = tokio::time::timeout(SOON, async {
        while submit(Some(&token)).await.unwrap().status().as_u16() != 401 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    revoked.await.unwrap();
    assert_eq!(serve.stop(SOON), Some(0));

    // A namespace goes only when it is meant and nobody works in it.
    assert_eq!(program.run(&["purge", "--yes", "other"]).code, Some(2));
    let purged = program.json(&["purge", "--yes", bed.namespace()]);
    assert!(purged["removed_keys"].as_u64().unwrap() > 5, "{purged}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_shows_its_metrics() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let program = program(&bed.limited_url(), bed.namespace());
    let work = program.start("executor", &["work", "--queue", "q", "--discard", "--listen", "127.0.0.1:0"]);
    let line = work.until_said("serving /metrics, /healthz and /readyz", SOON);
    let at = line.split("http=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    work.until_said("executor runs", SOON);
    let text = reqwest::get(format!("http://{at}/metrics")).await.unwrap().text().await.unwrap();
    assert!(text.contains("minutehand_executor_slots"), "{text}");
    for path in ["healthz", "readyz"] {
        assert_eq!(reqwest::get(format!("http://{at}/{path}")).await.unwrap().status().as_u16(), 200);
    }
    assert_eq!(work.stop(SOON), Some(0));
}
