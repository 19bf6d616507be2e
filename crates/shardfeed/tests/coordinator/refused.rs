//! What cannot work is said, within a stated time, and without secrets.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed::{Error, StreamCoordinator, StreamingConfig, StreamingShardLoader};

use super::etcd::Etcd;
use super::support::{Numbers, wait_until};

/// In every place where a secret can be given.
const CANARY: &str = "hunter2-canary";

fn config(rank: usize) -> StreamingConfig {
    StreamingConfig::new(2, rank).unwrap().with_lease(Duration::from_secs(2)).with_fault_tolerance(1)
}

/// The message, which must come in time.
fn refused(url: &str) -> String {
    let since = Instant::now();
    let error = StreamCoordinator::connect(url, config(0)).unwrap_err();
    assert!(since.elapsed() < Duration::from_secs(20), "{error} after {:?}", since.elapsed());
    let (shown, debugged) = (error.to_string(), format!("{error:?}"));
    assert!(!shown.contains(CANARY) && !debugged.contains(CANARY), "{shown} {debugged}");
    shown
}

#[test]
fn nobody_there() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let message = refused(&format!("etcd://me:{CANARY}@{free}/job"));
    assert!(
        message.contains(&format!("etcd://{free}/job")) && message.contains("tried for 5 s"),
        "{message}"
    );
    assert!(message.to_lowercase().contains("refused"), "{message}");

    // Somebody who says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let message = refused(&format!("etcd://{}/job", silent.local_addr().unwrap()));
    assert!(message.contains("does not answer"), "{message}");
}

#[test]
fn what_is_no_url_or_too_short_a_lease() {
    assert!(refused(&format!("http://me:{CANARY}@localhost:2379/job")).contains("begins with http"));
    assert!(refused("etcd://localhost/job").contains("no host with a port"));
    let short = config(0).with_lease(Duration::from_millis(500));
    let error = StreamCoordinator::connect("etcd://localhost:2379/job", short).unwrap_err().to_string();
    assert!(error.contains("a lease of 500 ms; on etcd it takes 2 s at least"), "{error}");
    let missing = refused("etcd://localhost:2379/job?ca=/nowhere/ca.pem");
    assert!(missing.contains("/nowhere/ca.pem"), "{missing}");
}

#[test]
fn another_data_set_and_the_same_rank() {
    let etcd = Etcd::start(1);
    let connect = || Arc::new(StreamCoordinator::connect(&etcd.url("job"), config(0)).unwrap());
    let numbers = Numbers { len: 100, delay: Duration::ZERO };
    let first = StreamingShardLoader::new(numbers.clone(), config(0)).unwrap().with_coordinator(connect());
    first.next().unwrap().unwrap();

    let other = Numbers { len: 99, ..numbers.clone() };
    let other = StreamingShardLoader::new(other, config(1)).unwrap().with_coordinator(connect());
    let error = other.next().unwrap_err();
    assert!(matches!(error, Error::Coordinator { .. }), "{error:?}");
    assert!(error.to_string().contains("number of samples is 100, here it is 99"), "{error}");

    // The first is alive: that is seen from its next heartbeat.
    let since = Instant::now();
    let twin = StreamingShardLoader::new(numbers, config(0)).unwrap().with_coordinator(connect());
    let error = twin.next().unwrap_err().to_string();
    assert!(error.contains("another process has this rank"), "{error}");
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert!(first.next().unwrap().is_some());
}

#[test]
fn who_is_refused_feeds_its_trainer_and_changes_nothing() {
    let etcd = Etcd::start(1);
    let config = |world_size| {
        StreamingConfig::new(world_size, 0).unwrap().with_lease(Duration::from_secs(2)).with_checkpointing(10)
    };
    let connect = || Arc::new(StreamCoordinator::connect(&etcd.url("job"), config(2)).unwrap());
    let join = |len, world_size| {
        let numbers = Numbers { len, delay: Duration::ZERO };
        StreamingShardLoader::new(numbers, config(world_size)).unwrap().with_coordinator(connect())
    };
    let coordinator = connect();
    let held = || coordinator.get_checkpoint(0).unwrap().map(|state| (state.samples, state.position));
    let first = join(100, 2);
    for expected in 0..10 {
        assert_eq!(first.next().unwrap(), Some(2 * expected));
    }
    wait_until("the checkpoint is there", || held() == Some((100, 10)));
    drop(first);
    // Of another world size, and of another data set.
    let alone = join(100, 1);
    assert!(alone.commit().unwrap_err().to_string().contains("with a coordinator of world size 2"));
    assert!(alone.next().is_err(), "it is told");
    let other = join(90, 2);
    wait_until("it is refused", || {
        other.coordinator_trouble().is_some_and(|trouble| trouble.contains("started otherwise"))
    });
    let message = other.commit_step(3).unwrap_err().to_string();
    assert!(message.contains("number of samples is 100, here it is 90"), "{message}");
    for loader in [alone, other] {
        for _ in 0..9 {
            assert!(loader.next().unwrap().is_some());
        }
        assert!(loader.commit().is_err());
    }
    assert_eq!(held(), Some((100, 10)));
}

#[test]
fn an_etcd_that_forgot() {
    let mut etcd = Etcd::start(1);
    let coordinator = Arc::new(StreamCoordinator::connect(&etcd.url("job"), config(0)).unwrap());
    let numbers = Numbers { len: 1000, delay: Duration::ZERO };
    let loader =
        StreamingShardLoader::new(numbers, config(0)).unwrap().with_coordinator(Arc::clone(&coordinator));
    for _ in 0..10 {
        loader.next().unwrap();
        loader.commit().unwrap();
    }
    etcd.kill(0);
    etcd.forget(0);
    etcd.run(0);
    let error = coordinator.get_worker_health(0).unwrap_err().to_string();
    assert!(error.contains("another than before, or was restored from a backup"), "{error}");
    // Who works by it is told, and does not wait.
    let error = loader.commit().unwrap_err().to_string();
    assert!(error.contains("another than before, or was restored from a backup"), "{error}");
    assert!(loader.next().is_err());
}

fn run(program: &str, arguments: &[&str], dir: &Path) {
    let done = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    let done = done.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// An authority, a server and a client signed by it, and another client that is not.
fn certificates(dir: &Path) {
    let authority = |name: &str| {
        let subject = format!("/CN={name}");
        run(
            "openssl",
            &[
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                &subject,
                "-keyout",
                &format!("{name}.key"),
                "-out",
                &format!("{name}.pem"),
            ],
            dir,
        );
    };
    authority("ca");
    authority("stranger");
    for (name, subject) in [("server", "/CN=localhost"), ("client", "/CN=worker")] {
        let (key, csr, pem, ext) =
            (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"), format!("{name}.ext"));
        std::fs::write(dir.join(&ext), "subjectAltName=IP:127.0.0.1,DNS:localhost\n").unwrap();
        run(
            "openssl",
            &["req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", &key, "-out", &csr],
            dir,
        );
        run(
            "openssl",
            &[
                "x509",
                "-req",
                "-in",
                &csr,
                "-CA",
                "ca.pem",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                "2",
                "-extfile",
                &ext,
                "-out",
                &pem,
            ],
            dir,
        );
    }
}

#[test]
fn certificates_let_in_those_who_have_them() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let shown = |name: &str| path(name).display().to_string();
    let etcd = Etcd::start_with(
        1,
        &[
            format!("--cert-file={}", shown("server.pem")),
            format!("--key-file={}", shown("server.key")),
            format!("--trusted-ca-file={}", shown("ca.pem")),
            "--client-cert-auth".to_owned(),
        ],
    );
    let with = |cert: &str| {
        let (ca, cert, key) = (shown("ca.pem"), shown(&format!("{cert}.pem")), shown(&format!("{cert}.key")));
        format!("{}?ca={ca}&cert={cert}&key={key}", etcd.url("job"))
    };
    let coordinator = StreamCoordinator::connect(&with("client"), config(0)).unwrap();
    coordinator.update_worker_health(0, 1, 1.0).unwrap();
    assert!(coordinator.get_worker_health(0).unwrap().is_some());
    // Nothing shows the key.
    let key = std::fs::read_to_string(path("client.key")).unwrap();
    let line = key.lines().nth(2).unwrap();
    assert!(!format!("{coordinator:?}").contains(line));
    assert!(!refused(&with("stranger")).contains(line));
    refused(&etcd.url("job"));
    refused(&format!("{}?ca={}", etcd.url("job"), shown("stranger.pem")));
}

#[test]
fn passwords_let_in_those_who_know_them_and_are_never_shown() {
    let etcd = Etcd::start(1);
    let hosts = etcd.hosts();
    // Rights for one job alone.
    let ctl = |arguments: &[&str]| {
        let endpoint = format!("--endpoints={hosts}");
        let done = Command::new("etcdctl").env("ETCDCTL_API", "3").arg(endpoint).args(arguments).output();
        let done = done.unwrap_or_else(|error| panic!("cannot run etcdctl: {error}"));
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let user = format!("worker:{CANARY}");
    ctl(&["user", "add", "root:root"]);
    ctl(&["user", "add", &user]);
    ctl(&["role", "add", "mine"]);
    ctl(&["role", "grant-permission", "mine", "--prefix=true", "readwrite", "/shardfeed/1/mine/"]);
    ctl(&["user", "grant-role", "worker", "mine"]);
    ctl(&["auth", "enable"]);

    let url = |password: &str, job: &str| format!("etcd://worker:{password}@{hosts}/{job}");
    let message = refused(&url("wrong-hunter2-canary", "mine"));
    assert!(message.contains("authentication failed"), "{message}");
    let message = refused(&url(CANARY, "theirs"));
    assert!(message.contains("permission denied"), "{message}");
    let message = refused(&etcd.url("mine"));
    assert!(message.contains("user name is empty") || message.contains("permission denied"), "{message}");

    let coordinator = Arc::new(StreamCoordinator::connect(&url(CANARY, "mine"), config(0)).unwrap());
    let loader = StreamingShardLoader::new(Numbers { len: 50, delay: Duration::ZERO }, config(0))
        .unwrap()
        .with_coordinator(Arc::clone(&coordinator));
    while loader.next().unwrap().is_some() {}
    loader.commit().unwrap();
    wait_until("it is known", || !coordinator.workers().unwrap().is_empty());
    let mut shown = format!(
        "{coordinator:?} {:?} {:?}",
        coordinator.workers().unwrap(),
        coordinator.job_state().unwrap()
    );
    drop(etcd);
    // Whatever fails now says who does not answer, and no more.
    shown += &coordinator.get_worker_health(0).unwrap_err().to_string();
    let error = coordinator.job_state().unwrap_err();
    let debugged = format!("{error:?}");
    shown += &debugged;
    shown += &loader.coordinator_trouble().unwrap_or_default();
    assert!(shown.contains(&hosts) && !shown.contains(CANARY), "{shown}");
}
