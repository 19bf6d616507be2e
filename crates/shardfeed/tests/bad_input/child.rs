use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Names the directory that the parent prepared; set in children alone.
const DIR: &str = "SHARDFEED_BAD_INPUT_DIR";

/// Where this process finds what its parent prepared; `None` in the parent.
pub fn prepared() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// Runs one test of this program again, in a process of its own.
pub struct Child<'a> {
    /// With its module.
    pub test: &'a str,
    /// Shell commands that run before it, in the same process; `$DIR` is the directory.
    pub before: &'a str,
    /// Whether it has its own mounts, and may mount.
    pub own_mounts: bool,
}

impl Child<'_> {
    /// The user's cache directory is `cache` in `dir`.
    pub fn run(&self, dir: &Path) {
        let output = self.try_run(dir);
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // Another name would run no test at all, successfully.
        assert!(output.status.success() && out.contains("1 passed"), "{}: {out}{error}", self.test);
    }

    fn try_run(&self, dir: &Path) -> Output {
        let script = format!("DIR=\"${DIR}\"; {}; exec \"$0\" \"$@\"", self.before);
        let exe = std::env::current_exe().unwrap();
        let mut command = if self.own_mounts {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "--mount", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        command
            .args(["-e", "-c", &script])
            .arg(exe)
            .args(["--exact", self.test, "--nocapture"])
            .env(DIR, dir)
            .env("XDG_CACHE_HOME", dir.join("cache"))
            .output()
            .unwrap()
    }
}

/// Whether this machine lets a process mount things for itself.
pub fn can_mount() -> bool {
    let script = "mount -t tmpfs none /tmp";
    let probe = Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", script]).output();
    let can = probe.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped in part: this machine does not let a test mount its own file systems");
    }
    can
}
