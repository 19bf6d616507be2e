//! Real etcd servers on free ports of this machine, stopped when they are no longer needed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One server, or several that agree.
pub struct Etcd {
    nodes: Vec<Node>,
    _dir: tempfile::TempDir,
}

struct Node {
    client: u16,
    command: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Etcd {
    /// Starts so many servers, and waits until they answer.
    pub fn start(nodes: usize) -> Self {
        Self::start_with(nodes, &[])
    }

    /// The same with more arguments.
    pub fn start_with(nodes: usize, arguments: &[String]) -> Self {
        let scheme = if arguments.iter().any(|argument| argument.starts_with("--cert-file")) {
            "https"
        } else {
            "http"
        };
        let dir = tempfile::tempdir().unwrap();
        let ports = free_ports(2 * nodes);
        let peers: Vec<String> =
            (0..nodes).map(|node| format!("n{node}=http://127.0.0.1:{}", ports[2 * node + 1])).collect();
        let node = |node: usize| {
            let (client, peer) = (ports[2 * node], ports[2 * node + 1]);
            let listen = format!("{scheme}://127.0.0.1:{client}");
            let talk = format!("http://127.0.0.1:{peer}");
            let mut command: Vec<String> = [
                ("--name", format!("n{node}")),
                ("--data-dir", dir.path().join(format!("n{node}")).display().to_string()),
                ("--listen-client-urls", listen.clone()),
                ("--advertise-client-urls", listen),
                ("--listen-peer-urls", talk.clone()),
                ("--initial-advertise-peer-urls", talk),
                ("--initial-cluster", peers.join(",")),
                ("--log-level", "error".to_owned()),
            ]
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect();
            command.extend_from_slice(arguments);
            Node { client, command, log: dir.path().join(format!("n{node}.log")), child: None }
        };
        let mut etcd = Self { nodes: (0..nodes).map(node).collect(), _dir: dir };
        for node in 0..nodes {
            etcd.run(node);
        }
        for node in 0..nodes {
            etcd.wait_for(node);
        }
        etcd
    }

    /// Starts a server that was killed.
    pub fn run(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let log = std::fs::File::create(&node.log).unwrap();
        let child = Command::new("etcd")
            .args(&node.command)
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start etcd ({error}): `cargo xtask test` installs it, as does apt-get install etcd-server"));
        node.child = Some(child);
    }

    fn wait_for(&self, node: usize) {
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", self.nodes[node].client)).is_err() {
            let log = || std::fs::read_to_string(&self.nodes[node].log).unwrap_or_default();
            assert!(Instant::now() < until, "etcd does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `host:port` of all servers.
    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.client)).collect();
        hosts.join(",")
    }

    /// The URL of a job.
    pub fn url(&self, job: &str) -> String {
        format!("etcd://{}/{job}", self.hosts())
    }

    /// Ends a server as if its machine had lost power.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The process of a server that runs.
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.nodes[node].child.as_ref().map(Child::id)
    }

    /// The server that leads, as one of the others says.
    pub fn leader(&self) -> Option<usize> {
        let ids: Vec<Option<(String, String)>> =
            self.nodes.iter().map(|node| node.child.as_ref().and_then(|_| status(node.client))).collect();
        let (_, leader) = ids.iter().flatten().next()?.clone();
        ids.iter().position(|id| id.as_ref().is_some_and(|(id, _)| *id == leader))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill(node);
        }
    }
}

/// A server's own number, and that of the one it takes for the leader.
fn status(port: u16) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let request = "POST /v3/maintenance/status HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let field = |name: &str| {
        let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    Some((field("member_id")?, field("leader")?))
}

/// Ports that nobody listens on at present.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}
