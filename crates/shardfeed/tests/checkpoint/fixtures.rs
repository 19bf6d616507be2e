use serde_json::Value;

use crate::support::{fixtures, open, sha256, ways};

#[test]
fn every_fixture_is_what_torch_reads_whichever_way_it_is_read() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(fixtures().join("expected.json")).unwrap()).unwrap();
    let mut compared = 0;
    for (name, answer) in expected.as_object().unwrap() {
        let mut checkpoint = open(&fixtures().join(name));
        // What torch cannot read has no answer here; `what_torch_writes_and_cannot_read` looks at it.
        let Some(entries) = answer.get("ok").and_then(Value::as_object) else { continue };
        for options in ways() {
            let way = format!("{name}, {options:?}");
            checkpoint = checkpoint.with_options(options);
            for (key, entry) in entries {
                if entry.get("object").is_some() {
                    // Saved without flattening, a dictionary is one object.
                    let is_flat = checkpoint.objects().iter().any(|object| object.name == *key);
                    let stored = if is_flat { key } else { key.split('.').next().unwrap() };
                    let object = checkpoint
                        .read_object(stored)
                        .unwrap_or_else(|error| panic!("{way}: {key}: {error}"));
                    assert!(object.starts_with(b"PK"), "{way}: {key}");
                    continue;
                }
                let tensor = checkpoint.read(key).unwrap_or_else(|error| panic!("{way}: {key}: {error}"));
                assert_eq!(
                    format!("torch.{}", tensor.dtype),
                    entry["dtype"].as_str().unwrap(),
                    "{way}: {key}"
                );
                let shape: Vec<u64> =
                    entry["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect();
                assert_eq!(tensor.shape, shape, "{way}: {key}");
                assert_eq!(sha256(&tensor.bytes), entry["sha256"].as_str().unwrap(), "{way}: {key}");
                compared += 1;
            }
        }
        let mut tensors = checkpoint.tensors().iter();
        assert!(
            tensors.all(|tensor| entries.contains_key(&tensor.name)),
            "{name}: all that is there has an answer"
        );
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn what_torch_writes_and_cannot_read() {
    for options in ways() {
        let checkpoint = open(&fixtures().join("f11_fs_safetensors")).with_options(options);
        let a: Vec<u8> = (0..10).flat_map(|number| (number as f32).to_le_bytes()).collect();
        assert_eq!(checkpoint.read("a").unwrap().bytes, a);
        assert_eq!(checkpoint.read("b").unwrap().bytes, [0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f]);
        assert_eq!(checkpoint.read_slice("a", std::slice::from_ref(&(3..5))).unwrap().bytes, a[12..20]);
    }
}
