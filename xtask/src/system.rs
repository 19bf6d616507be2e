//! Programs that cargo does not install: an etcd to test against, what makes its users and certificates, and the protobuf
//! compiler to build its client with.

use std::path::Path;

use crate::command::Command;
use crate::failure::Failure;

/// Debian's packages. `protobuf-compiler` lacks the files that every other proto file includes.
const PACKAGES: [&str; 6] =
    ["etcd-server", "etcd-client", "openssl", "iproute2", "protobuf-compiler", "libprotobuf-dev"];

/// Programs in them, each with an argument by which it says that it is there.
const PROGRAMS: [(&str, &str); 5] = [
    ("etcd", "--version"),
    ("etcdctl", "version"),
    ("openssl", "version"),
    ("ip", "-Version"),
    ("protoc", "--version"),
];

/// Where those lie.
const INCLUDED: [&str; 2] =
    ["/usr/include/google/protobuf/descriptor.proto", "/usr/local/include/google/protobuf/descriptor.proto"];

/// Makes sure of them: finds them, or installs them where apt-get does.
pub(crate) fn ready(root: &Path) -> Result<(), Failure> {
    let missing = missing(root);
    if missing.is_empty() {
        return Ok(());
    }
    println!("not here: {}", missing.join(", "));
    if Command::program("apt-get", &["--version"]).probe(root).is_none() {
        return Err(Failure::new(format!("install {}, then run this again", PACKAGES.join(", "))));
    }
    let is_root = Command::program("id", &["-u"]).probe(root).is_some_and(|id| id.trim() == "0");
    let apt = |arguments: &[&str]| {
        let command = if is_root {
            Command::program("apt-get", arguments)
        } else {
            Command::program("sudo", &["apt-get"]).with(arguments)
        };
        // Nothing is asked, and no server started that nobody stops.
        command.set("DEBIAN_FRONTEND", "noninteractive").set("RUNLEVEL", "1").stream(root)
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"][..], &PACKAGES].concat())?;
    let missing = self::missing(root);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("still not here: {}", missing.join(", "))))
}

fn missing(root: &Path) -> Vec<&'static str> {
    let is_missing =
        |(program, argument): &(&str, &str)| Command::program(program, &[argument]).probe(root).is_none();
    let mut missing: Vec<&str> =
        PROGRAMS.iter().filter(|program| is_missing(program)).map(|(name, _)| *name).collect();
    if !INCLUDED.iter().any(|path| Path::new(path).is_file()) {
        missing.push("google/protobuf/descriptor.proto");
    }
    missing
}
