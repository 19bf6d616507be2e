//! `shardfeed workers` on a real etcd.
#![cfg(feature = "etcd")]

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use shardfeed::{StreamCoordinator, StreamingConfig, StreamingShardLoader, Tensor, TensorDataset};

#[allow(dead_code)]
#[path = "../../shardfeed/tests/common/etcd.rs"]
mod etcd;

fn workers(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shardfeed")).arg("workers").args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = workers(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_table_of_the_job_for_people_and_for_programs() {
    let etcd = etcd::Etcd::start(1);
    let url = etcd.url("table");
    assert_eq!(printed(&[&url]), "Nobody has joined this job yet.\n");

    let config = |rank| {
        StreamingConfig::new(3, rank).unwrap().with_fault_tolerance(1).with_lease(Duration::from_secs(2))
    };
    let coordinator = Arc::new(StreamCoordinator::connect(&url, config(0)).unwrap());
    let numbers = Tensor::<u32>::from_vec((0..300).collect(), &[300]).unwrap();
    let loaders: Vec<_> = (0..2)
        .map(|rank| {
            let dataset = TensorDataset::new(numbers.clone(), numbers.clone());
            let loader = StreamingShardLoader::new(dataset, config(rank)).unwrap();
            loader.with_coordinator(Arc::clone(&coordinator))
        })
        .collect();
    for loader in &loaders {
        (0..40).for_each(|_| drop(loader.next().unwrap().unwrap()));
        loader.commit().unwrap();
    }
    // Until both said so.
    let rows = loop {
        let shown: Value = serde_json::from_str(&printed(&[&url, "--json"])).unwrap();
        let rows = shown["workers"].as_array().unwrap().clone();
        if rows.iter().take(2).all(|row| row["position"] == 40) {
            break rows;
        }
    };
    assert_eq!(rows.len(), 3);
    assert_eq!((&rows[0]["rank"], &rows[0]["status"]), (&Value::from(0), &Value::from("active")));
    assert_eq!(rows[2]["status"], "unknown");
    assert!(rows[0]["lease_left_ms"].as_u64().unwrap() <= rows[0]["lease_granted_ms"].as_u64().unwrap());
    let table = printed(&[&url, "--once"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("rank  status"), "{table}");
    assert!(lines[2].starts_with("0     active") && lines[2].contains(" 40 "), "{table}");
    assert!(lines[4].starts_with("2     unknown"), "{table}");
    drop(loaders);
    let table = printed(&[&url, "--once"]);
    assert!(table.lines().nth(2).unwrap().starts_with("0     left"), "{table}");
}

#[test]
fn what_is_wrong_is_said_without_secrets() {
    for (url, code, words) in [
        ("etcd://me:hunter2@localhost/job", 2, "no host with a port"),
        ("etcd://me:hunter2@127.0.0.1:1/job", 3, "does not answer"),
    ] {
        let output = workers(&[url]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words) && !said.contains("hunter2"), "{said}");
    }
}
