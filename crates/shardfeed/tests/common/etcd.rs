//! Real etcd servers on free ports of this machine, stopped when they are no longer needed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One server, or several that agree.
pub struct Etcd {
    nodes: Vec<Node>,
    dir: tempfile::TempDir,
}

struct Node {
    address: SocketAddr,
    command: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    /// Its network, if it has one of its own.
    network: Option<Network>,
}

impl Etcd {
    /// Starts so many servers, and waits until they answer.
    pub fn start(nodes: usize) -> Self {
        Self::start_with(nodes, &[])
    }

    /// The same, each in a network of its own that can be cut off. `None` where such networks may not be made.
    pub fn start_in_networks(nodes: usize) -> Option<Self> {
        let networks: Option<Vec<Network>> = (0..nodes).map(Network::new).collect();
        Some(Self::start_nodes(networks?.into_iter().map(Some).collect(), &[]))
    }

    /// The same with more arguments.
    pub fn start_with(nodes: usize, arguments: &[String]) -> Self {
        Self::start_nodes((0..nodes).map(|_| None).collect(), arguments)
    }

    fn start_nodes(networks: Vec<Option<Network>>, arguments: &[String]) -> Self {
        let nodes = networks.len();
        let scheme = if arguments.iter().any(|argument| argument.starts_with("--cert-file")) {
            "https"
        } else {
            "http"
        };
        let dir = tempfile::tempdir().unwrap();
        let ports = free_ports(2 * nodes);
        let hosts: Vec<String> = networks
            .iter()
            .map(|network| network.as_ref().map_or("127.0.0.1".to_owned(), |network| network.host.clone()))
            .collect();
        let peers: Vec<String> = (0..nodes)
            .map(|node| format!("n{node}=http://{}:{}", hosts[node], ports[2 * node + 1]))
            .collect();
        let node = |(node, network): (usize, Option<Network>)| {
            let (client, peer) = (ports[2 * node], ports[2 * node + 1]);
            let listen = format!("{scheme}://{}:{client}", hosts[node]);
            let talk = format!("http://{}:{peer}", hosts[node]);
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
            let address = format!("{}:{client}", hosts[node]).parse().unwrap();
            Node { address, command, log: dir.path().join(format!("n{node}.log")), child: None, network }
        };
        let mut etcd = Self { nodes: networks.into_iter().enumerate().map(node).collect(), dir };
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
        let mut command = match &node.network {
            None => Command::new("etcd"),
            Some(network) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &network.name, "etcd"]);
                command
            }
        };
        let child = command
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
        while TcpStream::connect(self.nodes[node].address).is_err() {
            let log = || std::fs::read_to_string(&self.nodes[node].log).unwrap_or_default();
            assert!(Instant::now() < until, "etcd does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `host:port` of all servers.
    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| node.address.to_string()).collect();
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

    /// Removes what a server that was killed had written.
    pub fn forget(&mut self, node: usize) {
        std::fs::remove_dir_all(self.dir.path().join(format!("n{node}"))).unwrap();
    }

    /// Cuts a server off from all others, or joins it to them again. False if it has no network of its own.
    pub fn cut_off(&self, node: usize, is_cut: bool) -> bool {
        self.nodes[node]
            .network
            .as_ref()
            .is_some_and(|network| ip(&["link", "set", &network.link, if is_cut { "down" } else { "up" }]))
    }

    /// The process of a server that runs.
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.nodes[node].child.as_ref().map(Child::id)
    }

    /// The server that leads, as one of the others says.
    pub fn leader(&self) -> Option<usize> {
        let ids: Vec<Option<(String, String)>> =
            self.nodes.iter().map(|node| node.child.as_ref().and_then(|_| status(node.address))).collect();
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
fn status(address: SocketAddr) -> Option<(String, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
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

/// A network with one machine in it, joined to this one by a link.
struct Network {
    name: String,
    link: String,
    host: String,
}

/// What the links of one process are joined by.
fn bridge() -> (String, u32) {
    let process = std::process::id();
    (format!("sf{process:x}"), 16 + process % 200)
}

impl Network {
    /// The first also makes what they are joined by.
    fn new(number: usize) -> Option<Self> {
        let (bridge, net) = bridge();
        let (name, link) = (format!("{bridge}n{number}"), format!("{bridge}l{number}"));
        let network = Self { host: format!("10.{net}.7.{}", number + 2), name, link };
        let inside = format!("{}i", network.link);
        if number == 0 {
            let is_made = ip(&["link", "add", &bridge, "type", "bridge"])
                && ip(&["addr", "add", &format!("10.{net}.7.1/24"), "dev", &bridge])
                && ip(&["link", "set", &bridge, "up"]);
            if !is_made {
                return None;
            }
        }
        let (name, link, host) = (&network.name, &network.link, format!("{}/24", network.host));
        let is_made = ip(&["netns", "add", name])
            && ip(&["link", "add", link, "type", "veth", "peer", "name", &inside])
            && ip(&["link", "set", &inside, "netns", name])
            && ip(&["-n", name, "addr", "add", &host, "dev", &inside])
            && ip(&["-n", name, "link", "set", &inside, "up"])
            && ip(&["-n", name, "link", "set", "lo", "up"])
            && ip(&["link", "set", link, "master", &bridge])
            && ip(&["link", "set", link, "up"]);
        is_made.then_some(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        ip(&["link", "del", &self.link]);
        ip(&["netns", "del", &self.name]);
        // The last one finds it without links; before that it is refused or makes no difference.
        if self.name.ends_with("n0") {
            ip(&["link", "del", &bridge().0]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    let done = Command::new("ip").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}
