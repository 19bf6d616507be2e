//! Checkpoints of samples in files: whole or not at all, and told from damaged ones.

use std::path::Path;

use shardfeed_plan::{CheckpointError, CheckpointState};

use crate::cache::write_whole;
use crate::{Error, Result};

/// Writes a checkpoint so that the file holds the old one or the new one, never half of it.
pub fn write_checkpoint(path: &Path, state: &CheckpointState) -> Result<()> {
    write_whole(path, encode(state).as_bytes())
        .map_err(|error| Error::io(path, "write the checkpoint", error))
}

fn encode(state: &CheckpointState) -> String {
    let json = state.to_json();
    let check = crc32fast::hash(json.as_bytes());
    format!("{json}\n{check:08x}\n")
}

/// Reads a checkpoint.
pub fn read_checkpoint(path: &Path) -> Result<CheckpointState> {
    let refused = |source| Error::CheckpointFile { path: path.to_owned(), source };
    let damaged = |reason: &str| refused(CheckpointError::Damaged(reason.to_owned()));
    let bytes = std::fs::read(path).map_err(|error| Error::io(path, "read the checkpoint", error))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is no text"))?;
    let (json, check) = text.trim_end().split_once('\n').ok_or_else(|| damaged("it is cut short"))?;
    if check != format!("{:08x}", crc32fast::hash(json.as_bytes())) {
        return Err(damaged("its checksum is another"));
    }
    CheckpointState::from_json(json).map_err(refused)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::cache::write_in_steps;
    use crate::{StreamingConfig, StreamingShardLoader, Tensor, TensorDataset};

    const CHILD: &str = "SHARDFEED_TEST_WRITES_TO";
    const OLD: usize = 41;
    const NEW: usize = 97;

    fn checkpoint_at(position: usize) -> CheckpointState {
        let tensor = Tensor::<u8>::from_vec(vec![0; 200], &[200]).unwrap();
        let config = StreamingConfig::new(1, 0).unwrap().with_shuffle_seed(3).with_prefetch_buffer_size(0);
        let loader = StreamingShardLoader::new(TensorDataset::new(tensor.clone(), tensor), config).unwrap();
        (0..position).for_each(|_| drop(loader.next().unwrap()));
        loader.get_checkpoint()
    }

    /// Run by the test below as another process: says at each step where it is, and waits to be told to go on.
    #[test]
    fn child() {
        let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
        let mut line = String::new();
        write_in_steps(&path, encode(&checkpoint_at(NEW)).as_bytes(), || {
            println!("step");
            line.clear();
            std::io::stdin().read_line(&mut line).unwrap();
        })
        .unwrap();
    }

    /// Kills the writer at step `step`; `None` if it has no so many. Returns what is read then.
    fn killed_at(path: &Path, step: usize) -> Option<CheckpointState> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["shard::checkpoint_file::tests::child", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut steps = said.filter(|line| line.ends_with("step"));
        for passed in 0..=step {
            if steps.next().is_none() {
                assert!(child.wait().unwrap().success());
                return None;
            }
            if passed < step {
                child.stdin.as_ref().unwrap().write_all(b"go on\n").unwrap();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        Some(read_checkpoint(path).unwrap())
    }

    /// The checksum was computed by another program: the usual one of zlib.
    #[test]
    fn golden_file() {
        let golden = concat!(
            r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":42,"rank":1,"timestamp":1700000000,"world_size":2,"step":7,"#,
            r#""strategy":"round_robin","samples":20,"fingerprint":99,"facts":0,"processed":[[0,4],[6,7]],"assignment":null}"#,
            "\ne1363c7f\n"
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank1.checkpoint");
        std::fs::write(&path, golden).unwrap();
        let state = read_checkpoint(&path).unwrap();
        assert_eq!((state.epoch, state.position, state.step), (3, 4, Some(7)));
        assert_eq!(state.processed_indices().count(), 5);
        let again = dir.path().join("again.checkpoint");
        write_checkpoint(&again, &state).unwrap();
        assert_eq!(std::fs::read_to_string(again).unwrap(), golden);
    }

    #[test]
    fn killed_between_any_two_steps_the_old_or_the_new_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank0.checkpoint");
        let mut found = Vec::new();
        for step in 0.. {
            write_checkpoint(&path, &checkpoint_at(OLD)).unwrap();
            let Some(there) = killed_at(&path, step) else { break };
            assert!([OLD, NEW].contains(&there.position), "step {step}: {there:?}");
            found.push(there.position);
        }
        // Seven steps; from the renaming on it is the new one.
        assert_eq!(found.len(), 7, "{found:?}");
        assert!(found.is_sorted() && found[0] == OLD && found[6] == NEW, "{found:?}");
    }
}
