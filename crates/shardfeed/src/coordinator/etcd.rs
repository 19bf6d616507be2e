//! The store on etcd.
//!
//! `etcd-client` sends a request to one of its servers and reports what that one says; it does not try another. Here every server
//! has a client of its own: one that does not answer is left for the next, and whether a request may have happened is told
//! from the kind of its failure.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare as EtcdCompare, CompareOp, ConnectOptions, DeleteOptions, GetOptions,
    Identity, PutOptions, ResponseHeader, TlsOptions, Txn as EtcdTxn, TxnOp, TxnOpResponse, WatchOptions,
};
use shardfeed_plan::lease::{Answer, Compare, Entry, Key, Keys, Request, Txn, Value};
use tokio::runtime::Runtime;

use super::store::{Store, StoreError, Wake, Watch};
use super::url::EtcdUrl;
use crate::{Error, Result};

/// Everything of Shardfeed's lies under this.
const ROOT: &str = "/shardfeed/1";

/// A stream that is silent for so long is opened anew: a server that stands still does not close it.
const SILENCE: Duration = Duration::from_secs(5);

/// After a watch failed, before it is opened anew.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct EtcdStore {
    shared: Arc<Shared>,
    /// Taken when the store is dropped.
    runtime: Option<Runtime>,
}

struct Shared {
    url: EtcdUrl,
    options: ConnectOptions,
    /// A client for each server, once it was needed.
    clients: Vec<Mutex<Option<Client>>>,
    /// The server that answered last.
    current: AtomicUsize,
    /// `/shardfeed/1/job/`.
    prefix: String,
    /// What the servers call themselves, and the last change they told of.
    cluster: AtomicU64,
    revision: AtomicU64,
    /// They are others than before: nothing they say counts any more.
    is_other: AtomicBool,
}

impl EtcdStore {
    /// Reads certificates; connects when it is asked something.
    pub fn new(url: EtcdUrl) -> Result<Self> {
        let options = options(&url)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("shardfeed-etcd")
            .enable_time()
            .enable_io()
            .build()
            .map_err(|error| Error::Invalid(format!("cannot start a thread for etcd: {error}")))?;
        let prefix = format!("{ROOT}/{}/", url.job);
        let clients = url.hosts.iter().map(|_| Mutex::default()).collect();
        let shared = Shared {
            url,
            options,
            clients,
            current: AtomicUsize::new(0),
            prefix,
            cluster: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            is_other: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared), runtime: Some(runtime) })
    }

    /// Runs on the store's own thread, so that callers may be anywhere, in another runtime too.
    fn wait<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (tell, told) = mpsc::sync_channel(1);
        let runtime = self.runtime.as_ref().expect("not dropped");
        runtime.spawn(async move {
            let done = tokio::time::timeout(patience, work).await;
            let late = || StoreError::Unknown(format!("no answer within {} ms", patience.as_millis()));
            let _ = tell.send(done.unwrap_or_else(|_| Err(late())));
        });
        told.recv().unwrap_or_else(|_| Err(StoreError::Unknown("its thread is gone".to_owned())))
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Store for EtcdStore {
    fn ask(&self, request: &Request, patience: Duration) -> Result<Answer, StoreError> {
        let once = || {
            let before = self.shared.current.load(Relaxed);
            let (shared, request) = (Arc::clone(&self.shared), request.clone());
            let answered = self.wait(patience, async move { shared.answer(request).await });
            if matches!(answered, Err(StoreError::Unknown(_))) {
                // A server that stands still is not asked again before the others were; one that failed was left already.
                self.shared.leave(before);
            }
            answered
        };
        match once() {
            // What a password was good for ends: a new client brings it again.
            Err(StoreError::Denied(_)) if !self.shared.is_other.load(Relaxed) => once(),
            answered => answered,
        }
    }

    fn time_to_live(&self, lease: u64, patience: Duration) -> Result<Option<(u64, u64)>, StoreError> {
        let shared = Arc::clone(&self.shared);
        self.wait(patience, async move {
            let (server, mut client) = shared.client().await?;
            let answer = client.lease_time_to_live(lease as i64, None).await;
            let answer = answer.map_err(|error| shared.failed(server, &error))?;
            let is_there = answer.ttl() > 0;
            Ok(is_there.then(|| (answer.granted_ttl() as u64 * 1000, answer.ttl() as u64 * 1000)))
        })
    }

    fn modified(&self, key: &Key, patience: Duration) -> Result<u64, StoreError> {
        let (shared, key) = (Arc::clone(&self.shared), *key);
        self.wait(patience, async move {
            let known = shared.revision.load(Relaxed);
            let (server, mut client) = shared.client().await?;
            // In a transaction: not from a server that was left behind. Without the value, which may be large, or not be ours to read.
            let get = TxnOp::get(shared.path(&key), Some(GetOptions::new().with_keys_only()));
            let found = client.txn(EtcdTxn::new().and_then([get])).await;
            let found = found.map_err(|error| shared.failed(server, &error))?;
            shared.check(known, found.header())?;
            let pair = found.op_responses().into_iter().find_map(|response| match response {
                TxnOpResponse::Get(found) => found.kvs().first().map(etcd_client::KeyValue::mod_revision),
                _ => None,
            });
            Ok(pair.unwrap_or(0) as u64)
        })
    }

    fn watch(&self, keys: Keys, wake: Wake) -> Watch {
        let shared = Arc::clone(&self.shared);
        let runtime = self.runtime.as_ref().expect("not dropped");
        let task = runtime.spawn(async move {
            // From this change on; 0: from now on.
            let mut next = 0;
            loop {
                let _ = shared.watch(keys, &wake, &mut next).await;
                // What happened meanwhile is told by the next one, from where this one ended.
                tokio::time::sleep(PAUSE).await;
            }
        });
        Box::new(Task(task.abort_handle()))
    }

    fn is_local(&self) -> bool {
        false
    }

    fn name(&self) -> String {
        self.shared.url.to_string()
    }
}

/// Ends when it is dropped.
struct Task(tokio::task::AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    /// The client of the server that answered last.
    async fn client(&self) -> Result<(usize, Client), StoreError> {
        let server = self.current.load(Relaxed) % self.clients.len();
        let slot = &self.clients[server];
        let known = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(client) = known {
            return Ok((server, client));
        }
        let scheme = if self.url.is_encrypted() { "https" } else { "http" };
        let address = format!("{scheme}://{}", self.url.hosts[server]);
        let made = Client::connect([address], Some(self.options.clone())).await;
        // Nothing was asked yet, but who asks.
        let client = made.map_err(|error| match self.failed(server, &error) {
            StoreError::Denied(reason) => StoreError::Denied(reason),
            StoreError::NotSent(reason) | StoreError::Unknown(reason) => StoreError::NotSent(reason),
        })?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok((server, client))
    }

    /// Another server from now on.
    fn leave(&self, server: usize) {
        let _ = self.current.compare_exchange(server, (server + 1) % self.clients.len(), Relaxed, Relaxed);
    }

    /// What a failure means.
    fn failed(&self, server: usize, error: &etcd_client::Error) -> StoreError {
        let host = &self.url.hosts[server];
        let reason = format!("{host}: {}", innermost(error));
        if let etcd_client::Error::GRpcStatus(status) = error {
            use tonic::Code::{FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated};
            if matches!(
                status.code(),
                PermissionDenied | Unauthenticated | FailedPrecondition | InvalidArgument
            ) {
                // Tokens of passwords end: the next client brings another.
                *self.clients[server].lock().unwrap_or_else(PoisonError::into_inner) = None;
                return StoreError::Denied(format!("{host}: {}", status.message()));
            }
        }
        self.leave(server);
        if never_connected(error) { StoreError::NotSent(reason) } else { StoreError::Unknown(reason) }
    }

    /// Changes are numbered upwards by one cluster. Where they are not, somebody put a backup in its place, and no number means what
    /// it did: no commit may be compared with them.
    fn check(&self, known: u64, header: Option<&ResponseHeader>) -> Result<(), StoreError> {
        let Some(header) = header else { return Ok(()) };
        let (cluster, revision) = (header.cluster_id(), header.revision() as u64);
        self.revision.fetch_max(revision, Relaxed);
        let before =
            self.cluster.compare_exchange(0, cluster, Relaxed, Relaxed).unwrap_or_else(|before| before);
        if (before != 0 && before != cluster) || revision < known {
            self.is_other.store(true, Relaxed);
        }
        if self.is_other.load(Relaxed) {
            return Err(StoreError::Denied(format!(
                "etcd is another than before, or was restored from a backup (change {revision} after {known}); restore the job with \
                 StreamCoordinator::restore in a new process, or begin it under another name"
            )));
        }
        Ok(())
    }

    async fn answer(&self, request: Request) -> Result<Answer, StoreError> {
        let known = self.revision.load(Relaxed);
        let (server, mut client) = self.client().await?;
        let failed = |error: etcd_client::Error| self.failed(server, &error);
        match request {
            Request::Grant(ttl_ms) => {
                let granted = client.lease_grant(ttl_ms.div_ceil(1000) as i64, None).await.map_err(failed)?;
                self.check(known, granted.header())?;
                Ok(Answer::Granted(granted.id() as u64))
            }
            Request::KeepAlive(lease) => {
                // To open the stream is to ask once.
                match client.lease_keep_alive(lease as i64).await {
                    Ok(_) => Ok(Answer::Alive),
                    Err(etcd_client::Error::LeaseKeepAliveError(why)) if why.contains("not found") => {
                        Ok(Answer::LeaseGone)
                    }
                    Err(error) => Err(failed(error)),
                }
            }
            Request::Revoke(lease) => match client.lease_revoke(lease as i64).await {
                Ok(_) => Ok(Answer::Alive),
                Err(error) if is_lease_gone(&error) => Ok(Answer::LeaseGone),
                Err(error) => Err(failed(error)),
            },
            Request::Read(keys) => {
                // One transaction: all of it is read at one moment, and not from a server that was left behind.
                let gets = keys.iter().map(|keys| match keys.prefix() {
                    Some(prefix) => {
                        let options = GetOptions::new().with_prefix();
                        TxnOp::get(format!("{}{prefix}", self.prefix), Some(options))
                    }
                    None => TxnOp::get(self.path(&keys.bounds().0), None),
                });
                let gets = EtcdTxn::new().and_then(gets.collect::<Vec<_>>());
                let found = client.txn(gets).await.map_err(failed)?;
                self.check(known, found.header())?;
                let mut entries = Vec::new();
                for (keys, response) in keys.iter().zip(found.op_responses()) {
                    if let TxnOpResponse::Get(found) = response {
                        for pair in found.kvs() {
                            entries.extend(self.entry(keys, pair)?);
                        }
                    }
                }
                Ok(Answer::Read(entries))
            }
            Request::Write(txn) => match client.txn(self.etcd_txn(&txn)).await {
                Ok(answer) => {
                    self.check(known, answer.header())?;
                    let change = answer.header().map_or(0, |header| header.revision() as u64);
                    Ok(if answer.succeeded() { Answer::Applied(change) } else { Answer::Refused })
                }
                Err(error) if is_lease_gone(&error) => Ok(Answer::LeaseGone),
                Err(error) => Err(failed(error)),
            },
        }
    }

    fn path(&self, key: &Key) -> String {
        format!("{}{}", self.prefix, key.path())
    }

    fn entry(&self, keys: &Keys, pair: &etcd_client::KeyValue) -> Result<Option<Entry>, StoreError> {
        let path = pair.key_str().ok().and_then(|path| path.strip_prefix(&self.prefix));
        let (first, last) = keys.bounds();
        let Some(key) = path.and_then(Key::parse).filter(|key| (first..=last).contains(key)) else {
            return Ok(None);
        };
        let value =
            Value::decode(&key, pair.value()).map_err(|error| StoreError::Denied(error.to_string()))?;
        Ok(Some(Entry {
            key,
            value,
            created: pair.create_revision() as u64,
            modified: pair.mod_revision() as u64,
            lease: pair.lease() as u64,
        }))
    }

    fn etcd_txn(&self, txn: &Txn) -> EtcdTxn {
        let compares = txn.compares.iter().map(|compare| match compare {
            Compare::Created(key, change) => {
                EtcdCompare::create_revision(self.path(key), CompareOp::Equal, *change as i64)
            }
            Compare::Modified(key, change) => {
                EtcdCompare::mod_revision(self.path(key), CompareOp::Equal, *change as i64)
            }
        });
        let puts = txn.puts.iter().map(|(key, value, lease)| {
            let options = (*lease != 0).then(|| PutOptions::new().with_lease(*lease as i64));
            TxnOp::put(self.path(key), value.encode(), options)
        });
        let deletes = txn.deletes.iter().map(|key| TxnOp::delete(self.path(key), None::<DeleteOptions>));
        EtcdTxn::new().when(compares.collect::<Vec<_>>()).and_then(puts.chain(deletes).collect::<Vec<_>>())
    }

    /// Returns when the stream ends, or is silent for too long.
    async fn watch(&self, keys: Keys, wake: &Wake, next: &mut i64) -> Result<(), StoreError> {
        let (server, mut client) = self.client().await?;
        let (path, prefix) = match keys.prefix() {
            Some(prefix) => (format!("{}{prefix}", self.prefix), true),
            None => (self.path(&keys.bounds().0), false),
        };
        let mut options = WatchOptions::new().with_progress_notify().with_start_revision(*next);
        if prefix {
            options = options.with_prefix();
        }
        let failed = |error: etcd_client::Error| self.failed(server, &error);
        let opened = tokio::time::timeout(SILENCE, client.watch(path, Some(options))).await;
        let mut stream = opened.map_err(|_| StoreError::NotSent("no answer".to_owned()))?.map_err(failed)?;
        // Whatever happened before.
        wake();
        loop {
            let message = match tokio::time::timeout(SILENCE, stream.message()).await {
                Ok(message) => message.map_err(failed)?,
                Err(_) => {
                    // Silence may mean that nothing happens: it is asked whether it is there.
                    stream.request_progress().await.map_err(failed)?;
                    let answer = tokio::time::timeout(SILENCE, stream.message()).await;
                    answer
                        .map_err(|_| {
                            self.leave(server);
                            StoreError::NotSent("silent".to_owned())
                        })?
                        .map_err(failed)?
                }
            };
            let Some(message) = message else { return Ok(()) };
            if message.canceled() {
                // What it was to go on from was compacted: from now on, then.
                *next = message.compact_revision().max(0);
                return Ok(());
            }
            if let Some(header) = message.header() {
                *next = (*next).max(header.revision() + 1);
            }
            if !message.events().is_empty() {
                wake();
            }
        }
    }
}

fn options(url: &EtcdUrl) -> Result<ConnectOptions> {
    let second = Duration::from_secs(1);
    let mut options = ConnectOptions::new()
        .with_connect_timeout(second)
        .with_keep_alive(second, second)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true);
    if let Some((name, password)) = &url.user {
        options = options.with_user(name, password.reveal()).with_auto_token_refresh(true);
    }
    if url.is_encrypted() {
        let read =
            |path: &std::path::Path| std::fs::read(path).map_err(|error| Error::io(path, "read it", error));
        let mut tls = TlsOptions::new();
        if let Some(ca) = &url.ca {
            tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
        }
        if let Some((cert, key)) = &url.identity {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        options = options.with_tls(tls);
    }
    Ok(options)
}

fn is_lease_gone(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status)
        if status.code() == tonic::Code::NotFound && status.message().contains("lease"))
}

/// Whether a request cannot have reached anybody.
fn never_connected(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(status) = error else { return false };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The last of the causes: "connection refused", not "transport error".
fn innermost(error: &etcd_client::Error) -> String {
    let mut text = error.to_string();
    let mut cause = match error {
        etcd_client::Error::GRpcStatus(status) => {
            status.message().clone_into(&mut text);
            status.source()
        }
        etcd_client::Error::TransportError(error) => error.source(),
        _ => None,
    };
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}
