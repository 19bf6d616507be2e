use std::panic::AssertUnwindSafe;

use shardfeed::sample::write_rows;
use shardfeed::{Packing, StateError, StreamState, TokenLoader, TokenLoaderBuilder, read_state, write_state};

use crate::child::{Child, can_mount, prepared};
use crate::world::{World, assert_names, assert_says, message, plain, rest, rewrite, tokens_of};

/// A loader that has delivered two steps of its first epoch.
fn started(world: &World) -> TokenLoader {
    let mut loader = world.loader();
    loader.next_batch().unwrap();
    loader.next_batch().unwrap();
    loader
}

/// The state is refused with these words, by a new loader and by one that is under way, which goes on as before.
#[track_caller]
fn assert_refused(world: &World, builder: &TokenLoaderBuilder, state: &StreamState, words: &[&str]) {
    let said = message(builder.clone().resume_from(state.clone()).build());
    assert_says(&said, words);

    let mut loader = builder.clone().build().unwrap();
    let mut tokens = tokens_of(&loader.next_batch().unwrap().unwrap());
    let before = loader.state().to_json();
    assert_says(&message(loader.load_state(state)), words);
    assert_eq!(loader.state().to_json(), before);
    tokens.extend(rest(&mut loader).unwrap());
    tokens.sort_unstable();
    // Ends of documents are not the world's.
    tokens.retain(|&token| token != EOS);
    assert_eq!(tokens, world.tokens(), "after a refused state the stream goes on as before");
}

const EOS: u32 = 4_000_000;

#[test]
fn a_state_continues_where_it_was_taken() {
    let world = World::with_files(3);
    let mut loader = started(&world);
    let state = loader.state().clone();
    let expected = rest(&mut loader).unwrap();
    assert_eq!(expected, world.tokens()[128..]);
    let mut resumed = world.builder().resume_from(state.clone()).build().unwrap();
    assert_eq!(rest(&mut resumed).unwrap(), expected);
    let mut loaded = world.loader();
    loaded.load_state(&state).unwrap();
    assert_eq!(rest(&mut loaded).unwrap(), expected);
}

#[test]
fn a_state_of_another_data_set_is_refused() {
    let world = World::with_files(3);
    let state = started(&world).state().clone();
    let fingerprint = state.fingerprint.to_string();
    let words = ["another data set", fingerprint.as_str(), "files were added, removed, renamed or rewritten"];

    assert_refused(&World::with_files(2), &World::with_files(2).builder(), &state, &words);

    let added = World::with_files(3);
    write_rows(&added.path(3), &[None], &plain()).unwrap();
    assert_refused(&added, &added.builder(), &state, &words);

    let renamed = World::with_files(3);
    std::fs::rename(renamed.path(2), renamed.path(7)).unwrap();
    assert_refused(&renamed, &renamed.builder(), &state, &words);

    let mut files = World::with_files(3).files;
    files[1][4] = None;
    let rewritten = World::of(files, &plain());
    assert_refused(&rewritten, &rewritten.builder(), &state, &words);

    // Copied elsewhere, and touched, it is the same data set.
    let copy = World::with_files(3);
    rewrite(&copy.path(0), &std::fs::read(copy.path(0)).unwrap());
    let mut loader = copy.builder().resume_from(state).build().unwrap();
    assert_eq!(rest(&mut loader).unwrap(), world.tokens()[128..]);
}

#[test]
fn a_state_of_other_settings_is_refused_by_who_asked_for_others() {
    let world = World::with_files(3);
    let given = || TokenLoader::builder(world.dir(), 16, 4).cache(shardfeed::CachePolicy::Off).threads(2);
    let state = given().seed(7).eos_id(Some(EOS)).build().unwrap().state().clone();
    for (builder, words) in [
        (given().seed(8), ["seed 7", "seed 8"]),
        (given().packing(Packing::Pad), ["packing concat", "packing pad"]),
        (given().eos_id(None), ["eos_id 4000000", "eos_id none"]),
        (given().shuffle(false), ["shuffle true", "shuffle false"]),
        (given().lanes(3), ["lanes 64", "lanes 3"]),
        (given().window(5), ["window 8192", "window 5"]),
    ] {
        let words = [&words[..], &["the state was saved with", "leave it out to use the state's"]].concat();
        assert_refused(&world, &builder, &state, &words);
    }
    let longer = TokenLoader::builder(world.dir(), 32, 4).cache(shardfeed::CachePolicy::Off);
    assert_refused(&world, &longer, &state, &["seq_len 16", "seq_len 32"]);

    let said = message(given().epoch(1).resume_from(state.clone()).build());
    assert_says(&said, &["epoch 0", "epoch 1", "leave it out"]);

    // Who asked for nothing takes the state's.
    let mut loader = given().resume_from(state.clone()).build().unwrap();
    assert_eq!(loader.settings(), &state.settings);
    assert_eq!(rest(&mut loader).unwrap().len(), world.tokens().len() + 60);
}

#[test]
fn a_state_of_rows_as_sequences_says_how_to_load_it() {
    let world = World::with_files(2);
    let padded = world.builder().packing(Packing::Pad).build().unwrap();
    let state = padded.state().clone();
    // A new loader adopts it; one that has not counted rows cannot.
    let mut adopted = world.builder().resume_from(state.clone()).build().unwrap();
    assert_eq!(rest(&mut adopted).unwrap(), world.tokens());
    let said = message(world.loader().load_state(&state));
    assert_says(&said, &["packing \"pad\"", "give the loader packing pad"]);
}

#[test]
fn a_state_past_the_end_is_refused_and_one_at_the_end_ends() {
    let world = World::with_files(3);
    let loader = started(&world);
    let sequences = loader.sequences_per_epoch();
    for position in [sequences + 1, sequences * 2, u64::MAX >> 2] {
        let mut state = loader.state().clone();
        state.position = position;
        let (position, sequences) = (format!("position {position}"), format!("{sequences} sequences"));
        assert_refused(&world, &world.builder(), &state, &[&position, &sequences]);
    }
    let mut beyond = loader.state().clone();
    beyond.position = u64::MAX;
    assert_refused(
        &world,
        &world.builder(),
        &beyond,
        &["position 18446744073709551615", "past any data set"],
    );
    let mut at_end = loader.state().clone();
    at_end.position = sequences;
    let mut loader = world.builder().resume_from(at_end).build().unwrap();
    assert!(loader.next_batch().unwrap().is_none(), "the end was not announced yet");
    assert_eq!((loader.state().epoch, loader.state().position), (1, 0));
    assert_eq!(rest(&mut loader).unwrap(), world.tokens());
}

#[test]
fn a_stored_state_that_is_damaged_or_of_another_version_is_refused_with_its_reason() {
    let world = World::with_files(1);
    let json = started(&world).state().to_json();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    for (text, words) in [
        (String::new(), vec!["not a Shardfeed state"]),
        ("null".to_owned(), vec!["not a Shardfeed state"]),
        ("{}".to_owned(), vec!["not a Shardfeed state"]),
        (json[..json.len() - 3].to_owned(), vec!["not a Shardfeed state"]),
        (json.replace("position", "place"), vec!["not a Shardfeed state"]),
        (json.replacen("\"seed\"", "\"extra\":1,\"seed\"", 1), vec!["not a Shardfeed state"]),
        ("x".repeat(1 << 20), vec!["not a Shardfeed state"]),
        (
            json.replace("\"position\":8", "\"position\":9"),
            vec!["damaged", "checksum", "load an earlier one"],
        ),
        (json.replace("shardfeed_state\":1", "shardfeed_state\":2"), vec!["format 2", "use the release"]),
        (
            with_checksum(&json.replace("algorithm\":1", "algorithm\":2")),
            vec!["version 2", "start the next epoch anew"],
        ),
    ] {
        let said = StreamState::from_json(&text).unwrap_err().to_string();
        assert_says(&said, &words);
        std::fs::write(&path, text).unwrap();
        let said = message(read_state(&path));
        assert_says(&said, &words);
        assert_names(&said, &path);
    }
    let missing = dir.path().join("missing.json");
    assert_names(&message(read_state(&missing)), &missing);
    let below = path.join("below");
    assert_names(&message(write_state(&below, started(&world).state())), &below);
}

#[test]
fn stored_states_made_by_hand_are_refused_for_what_is_impossible_in_them() {
    let world = World::with_files(1);
    let json = started(&world).state().to_json();
    assert_eq!(with_checksum(&json), json, "the checksum is ours");
    for (from, to, words) in [
        ("\"position\":8", "\"position\":18446744073709551615", ["contradicts itself", "past any data set"]),
        ("\"lanes\":1", "\"lanes\":0", ["settings are impossible", "lanes is 0"]),
        ("\"window\":1", "\"window\":0", ["settings are impossible", "window is 0"]),
        ("\"seq_len\":16", "\"seq_len\":0", ["settings are impossible", "seq_len is 0"]),
        ("\"lanes\":1", "\"lanes\":64", ["settings are impossible", "shuffle is off"]),
        ("[[0,0,4]]", "[]", ["contradicts itself", "global batch"]),
        ("[[0,0,4]]", "[[0,0,0]]", ["contradicts itself", "global batch"]),
        ("[[0,0,4]]", "[[9,2,4]]", ["contradicts itself", "global batch"]),
        ("\"skipped\":[]", "\"skipped\":[[5,0]]", ["contradicts itself", "skipped range"]),
        ("\"concat\"", "\"zip\"", ["not a Shardfeed state", "zip"]),
    ] {
        assert!(json.contains(from), "{from} is not in {json}");
        let said =
            StreamState::from_json(&with_checksum(&json.replacen(from, to, 1))).unwrap_err().to_string();
        assert_says(&said, &words);
    }
    // What contradicts only the data is left to the loader.
    let skipped = with_checksum(&json.replacen("\"skipped\":[]", "\"skipped\":[[100,1]]", 1));
    let state = StreamState::from_json(&skipped).unwrap();
    assert_refused(&world, &world.builder(), &state, &["position 101", "14 sequences"]);
}

/// Puts the right checksum on a state that was changed.
fn with_checksum(json: &str) -> String {
    let (fields, _) = json.rsplit_once("\"check\":\"").unwrap();
    let mut crc = u32::MAX;
    for byte in format!("{fields}\"check\":\"\"}}").bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    format!("{fields}\"check\":\"{:08x}\"}}", !crc)
}

#[test]
fn states_put_together_in_a_program_are_refused_as_stored_ones_are() {
    let world = World::with_files(3);
    let started = started(&world);
    let with = |change: fn(&mut StreamState)| {
        let mut state = started.state().clone();
        change(&mut state);
        state
    };
    let no_batch = |state: &mut StreamState| {
        *state = StreamState::start(state.fingerprint, state.settings.clone(), 0, 0);
    };
    let before_its_batch = |state: &mut StreamState| {
        state.steps.change(8, 5);
        state.position = 0;
    };
    let mut wrong = Vec::new();
    for (name, state) in [
        ("lanes 0", with(|state| state.settings.lanes = 0)),
        ("lanes past the limit", with(|state| state.settings.lanes = u32::MAX)),
        ("window 0", with(|state| state.settings.window = 0)),
        ("64 lanes without shuffling", with(|state| state.settings.lanes = 64)),
        ("global batch 0", with(no_batch)),
        ("a position before its last change of global batch", with(before_its_batch)),
    ] {
        // Stored, each of these is refused.
        let stored = StreamState::from_json(&state.to_json()).unwrap_err();
        assert!(matches!(stored, StateError::Settings(_) | StateError::Contradiction(_)), "{name}: {stored}");
        let new = || world.builder().resume_from(state.clone()).build().map(drop);
        let under_way = || world.loader().load_state(&state);
        for (how, result) in [
            ("a new loader", std::panic::catch_unwind(AssertUnwindSafe(new))),
            ("load_state", std::panic::catch_unwind(AssertUnwindSafe(under_way))),
        ] {
            match result {
                Ok(Err(error)) => assert_says(&error.to_string(), &["state"]),
                Ok(Ok(())) => wrong.push(format!("{name}: accepted by {how}")),
                Err(_) => wrong.push(format!("{name}: {how} panicked")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_last_epoch_there_is_ends_like_any_other() {
    let world = World::with_files(1);
    let mut state = world.loader().state().clone();
    state.epoch = u64::MAX;
    let state = StreamState::from_json(&state.to_json()).unwrap();
    let mut loader = world.builder().resume_from(state).build().unwrap();
    let tokens = std::panic::catch_unwind(AssertUnwindSafe(|| rest(&mut loader).unwrap()));
    assert_eq!(tokens.expect("no panic"), world.tokens());
}

#[test]
fn a_full_disk_is_said_and_leaves_the_old_state_whole() {
    let test = "states::a_full_disk_is_said_and_leaves_the_old_state_whole";
    if let Some(dir) = prepared() {
        let path = dir.join("full/state.json");
        let before = World::with_files(1).loader().state().clone();
        write_state(&path, &before).unwrap();
        let mut filler = std::fs::File::create(dir.join("full/filler")).unwrap();
        while std::io::Write::write(&mut filler, &[1; 512]).is_ok_and(|written| written > 0) {}
        let after = StreamState { position: 4, ..before.clone() };
        assert_says(&message(write_state(&path, &after)), &["state.json", "cannot write the state", "full"]);
        assert_eq!(read_state(&path).unwrap(), before);
        assert_eq!(std::fs::read_dir(dir.join("full")).unwrap().count(), 2, "nothing half-written is left");
        return;
    }
    if can_mount() {
        let dir = tempfile::tempdir().unwrap();
        let before = "mkdir \"$DIR/full\"; mount -t tmpfs -o size=64k none \"$DIR/full\"";
        Child { test, before, own_mounts: true }.run(dir.path());
    }
}
