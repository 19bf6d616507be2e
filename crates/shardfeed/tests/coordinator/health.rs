use std::sync::Arc;
use std::time::{Duration, SystemTime};

use shardfeed::{StreamCoordinator, StreamingConfig, WorkerStatus};

use super::support::{Numbers, config, loader, wait_until};

fn status(coordinator: &StreamCoordinator, rank: usize) -> WorkerStatus {
    coordinator.get_worker_health(rank).unwrap().unwrap().status
}

#[test]
fn reports_tell_how_workers_do() {
    let coordinator = StreamCoordinator::new(config(4, 0)).unwrap();
    assert_eq!(coordinator.get_worker_health(0).unwrap(), None);
    coordinator.register_worker(0, vec![]).unwrap();
    assert_eq!(status(&coordinator, 0), WorkerStatus::Unknown);
    let before = SystemTime::now() - Duration::from_secs(1);
    for (rank, throughput) in [(0, 100.0), (1, 110.0), (2, 90.0), (3, 44.0)] {
        coordinator.update_worker_health(rank, 1000 + rank as u64, throughput).unwrap();
    }
    for rank in 0..3 {
        assert_eq!(status(&coordinator, rank), WorkerStatus::Active);
    }
    // Under half of the median of 100, 110 and 90.
    assert_eq!(status(&coordinator, 3), WorkerStatus::Slow);
    let health = coordinator.get_worker_health(3).unwrap().unwrap();
    assert_eq!((health.rank, health.samples_processed), (3, 1003));
    assert!((health.average_throughput - 44.0).abs() < 1e-9);
    assert!(health.last_heartbeat > before);
    // Over the window it is no longer.
    coordinator.update_worker_health(3, 1100, 60.0).unwrap();
    assert_eq!(status(&coordinator, 3), WorkerStatus::Active);
    assert!((coordinator.get_worker_health(3).unwrap().unwrap().average_throughput - 52.0).abs() < 1e-9);

    // Who says nothing has failed when its lease ends; who comes back is there again.
    wait_until("the lease ends", || {
        coordinator.update_worker_health(0, 2000, 100.0).unwrap();
        status(&coordinator, 1) == WorkerStatus::Failed
    });
    assert_eq!(status(&coordinator, 0), WorkerStatus::Active);
    coordinator.update_worker_health(1, 2000, 100.0).unwrap();
    assert_eq!(status(&coordinator, 1), WorkerStatus::Active);
}

#[test]
fn throughputs_that_differ_are_dealt_with_if_that_is_asked_for() {
    let report = |config: StreamingConfig, throughputs: &[f64]| {
        let coordinator = StreamCoordinator::new(config).unwrap();
        for (rank, &throughput) in throughputs.iter().enumerate() {
            coordinator.update_worker_health(rank, 10, throughput).unwrap();
        }
        coordinator
    };
    let balanced = |config: StreamingConfig| config.with_dynamic_balancing(true);
    assert!(!report(config(2, 0), &[1.0, 9.0]).rebalance_if_needed().unwrap());
    assert!(!report(balanced(config(2, 0)), &[9.0, 9.1]).rebalance_if_needed().unwrap());
    assert!(!report(balanced(config(2, 0)), &[]).rebalance_if_needed().unwrap());
    let coordinator = report(balanced(config(2, 0)), &[1.0, 9.0]);
    assert!(coordinator.rebalance_if_needed().unwrap());
    let deal = coordinator.last_deal().unwrap().unwrap();
    assert_eq!(deal.left, [(0, 1_000_000, 200_000), (1, 1_000_000, 1_800_000)]);
    // Once.
    assert!(!coordinator.rebalance_if_needed().unwrap());
}

#[test]
fn what_nobody_can_report_is_refused() {
    let coordinator = StreamCoordinator::new(config(2, 0)).unwrap();
    for throughput in [-1.0, f64::NAN, f64::INFINITY] {
        let error = coordinator.update_worker_health(0, 1, throughput).unwrap_err().to_string();
        assert!(error.contains("must be a number, and not negative"), "{error}");
    }
    for error in [
        coordinator.register_worker(2, vec![]).unwrap_err(),
        coordinator.update_worker_health(2, 1, 1.0).unwrap_err(),
        coordinator.get_worker_health(2).unwrap_err(),
    ] {
        assert!(error.to_string().contains("rank 2 of world size 2"), "{error}");
    }
}

#[test]
fn loaders_report_by_themselves() {
    let coordinator = Arc::new(StreamCoordinator::new(config(2, 0)).unwrap());
    let numbers = Numbers { len: 4000, delay: Duration::ZERO };
    // Theirs for good: no lease, no waiting.
    let loaders: Vec<_> = (0..2).map(|rank| loader(&numbers, config(2, rank), &coordinator)).collect();
    loaders[0].next().unwrap().unwrap();
    wait_until("both are heard of", || {
        (0..2).all(|rank| coordinator.get_worker_health(rank).unwrap().is_some())
    });
    assert_eq!(std::iter::from_fn(|| loaders[0].next().unwrap()).count(), 1999);
    wait_until("it is told", || coordinator.get_worker_health(0).unwrap().unwrap().samples_processed == 2000);
    let rows = coordinator.workers().unwrap();
    assert_eq!(rows.iter().map(|row| row.position).collect::<Vec<_>>(), [2000, 0]);
    assert!(
        rows.iter().all(|row| row.lease_ms.is_some_and(|(granted, left)| granted == 2000 && left <= 2000))
    );
    assert!(rows[0].name.ends_with(&std::process::id().to_string()), "{rows:?}");
    drop(loaders);
    assert!(coordinator.workers().unwrap().iter().all(|row| row.has_left && row.lease_ms.is_none()));
}

#[test]
fn who_reported_by_itself_may_become_a_loader() {
    let coordinator = Arc::new(StreamCoordinator::new(config(1, 0)).unwrap());
    coordinator.update_worker_health(0, 5, 1.0).unwrap();
    let loader = loader(
        &Numbers { len: 10, delay: Duration::ZERO },
        config(1, 0).with_fault_tolerance(1),
        &coordinator,
    );
    assert!(loader.next().unwrap().is_some());
    // And reports beside it.
    coordinator.update_worker_health(0, 6, 123.0).unwrap();
    wait_until("it is known", || {
        (coordinator.get_worker_health(0).unwrap().unwrap().average_throughput - 123.0).abs() < 1e-9
    });
}
