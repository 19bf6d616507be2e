//! `shardfeed data plan`: what a job would read and hold, from the manifest alone.

mod text; // a plan      -> tables, JSON
mod panels; // figures   -> charts
mod line; // the line    -> strips of row groups and lanes
mod picture; // a plan   -> one picture of all

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use shardfeed::{
    DataSet, Dtype, EpochPlan, Error, MemoryNeeds, Packing, PlanError, PlanReport, RankMemory, ScanOptions,
    StateError, StreamSettings, TokenLoader, scan,
};

use crate::args::{Failure, SettingsArgs};
use crate::output::{say, scan_bar};

#[derive(Args, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// How many ranks there are; several to compare, for example 1,8,64.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    world_size: Vec<u32>,
    /// Draw the plan into this file; of several world sizes, the last one's ranks.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// List every rank.
    #[arg(long)]
    ranks: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// A plan and all that is told about it.
struct Told<'a> {
    source: String,
    epoch: u64,
    plan: EpochPlan<'a>,
    /// One for each world size that was asked for.
    reports: Vec<PlanReport>,
    memory_needs: MemoryNeeds,
    memory_budget: u64,
}

impl Told<'_> {
    /// Memory of the rank that holds most.
    fn memory(&self, report: &PlanReport) -> RankMemory {
        self.plan.memory(report, report.rank_of_most_lanes(), &self.memory_needs)
    }
}

pub fn run(args: &PlanArgs) -> Result<ExitCode, Failure> {
    let state = args.settings.saved_state()?;
    let (seq_len, global_batch) = args.settings.lengths(state.as_ref());
    let request = args.settings.request(seq_len);
    let settings = match &state {
        None => request.resolve(global_batch).map_err(Error::from)?,
        Some(state) => {
            request.check_against(&state.settings).map_err(Error::from)?;
            state.settings.clone()
        }
    };
    let data = read(args, &settings)?;
    let manifest = data.manifest();
    if let Some(state) = state.as_ref().filter(|state| state.fingerprint != manifest.fingerprint()) {
        let (state, data) = (state.fingerprint, manifest.fingerprint());
        return Err(Error::from(StateError::OtherData { state, data }).into());
    }
    let source = args.settings.data.source().to_string();
    let failure = |error| match error {
        PlanError::Settings(error) => Error::from(error),
        PlanError::Rank(error) => Error::from(error),
        PlanError::Empty => {
            Error::NoTokens { what: source.clone(), files: manifest.files().len(), rows: manifest.rows() }
        }
        other => Error::Invalid(other.to_string()),
    };
    let epoch = args.settings.epoch.or(state.map(|state| state.epoch)).unwrap_or(0);
    let plan =
        EpochPlan::new(manifest, &settings, epoch, global_batch, args.settings.tail).map_err(failure)?;
    let reports: Result<Vec<PlanReport>, PlanError> =
        args.world_size.iter().map(|&world_size| plan.report(world_size)).collect();
    let bytes_per_id = match args.settings.dtype {
        Dtype::Int64 => 8,
        Dtype::Int32 => 4,
    };
    let told = Told {
        epoch,
        reports: reports.map_err(failure)?,
        plan,
        memory_needs: MemoryNeeds { bytes_per_id, ..MemoryNeeds::default() },
        memory_budget: args.settings.memory_budget.unwrap_or(TokenLoader::MEMORY_BUDGET_DEFAULT),
        source: source.clone(),
    };
    if let Some(path) = &args.svg {
        let picture = picture::draw(&told).map_err(failure)?;
        std::fs::write(path, picture).map_err(|error| Error::Io {
            path: path.clone(),
            action: "write the picture",
            source: error,
        })?;
    }
    if args.json {
        say(&format!("{}\n", text::as_json(&told, args.ranks)))?;
    } else {
        say(&text::as_text(&told, args.ranks))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(args: &PlanArgs, settings: &StreamSettings) -> Result<Arc<DataSet>, Failure> {
    let bar = scan_bar("scanning");
    let progress = bar.clone();
    let options = ScanOptions {
        threads: args.settings.threads,
        cache: args.settings.data.cache(),
        pieces_of: (settings.packing == Packing::Pad).then_some(settings.seq_len),
        progress: Some(Arc::new(move |done, total| {
            progress.set_length(total);
            progress.set_position(done);
        })),
        ..ScanOptions::default()
    };
    let scanned = scan(&args.settings.data.source(), &options);
    bar.finish_and_clear();
    Ok(scanned?.0)
}
