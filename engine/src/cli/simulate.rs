//! `kvasir simulate`: its flags.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvasir_config::Count;
use kvasir_sim::{CostModel, Lengths, Pause};

use crate::exit::Failure;
use crate::simulate::{self, Calibration};

pub(crate) const AFTER_HELP: &str = "\
The scheduler is the real one; only the time of a step comes from a cost model. It is the default model's on 2 cores unless --cost-model \
says otherwise: measure another one with --calibrate, or fit one to records of your own with --fit.

Lists in --max-num-batched-tokens, --max-num-seqs, --request-rate, --clients and --speed-up make a table of all combinations, and the \
best setting is proposed: the one whose requests most often complete within the objectives, per second.

Lengths are a number, uniform:MIN:MAX, lognormal:MEDIAN:SIGMA[:MAX] or exponential:MEAN[:MAX]; pauses a number of seconds or \
exponential:MEAN.

  kvasir simulate --clients 8 --prompt-len 256 --output-len 128
  kvasir simulate --request-rate 0.5,1,2 --goodput ttft:2000 itl:100 --max-num-batched-tokens 128,512,2048 --max-num-seqs 16,64
  kvasir simulate --trace mooncake.jsonl --speed-up 0.1 --duration 3600 --json
  kvasir simulate --calibrate ./model.gguf --output steps.jsonl
  kvasir simulate --fit steps.jsonl --output cost.json && kvasir simulate --cost-model cost.json";

/// What to simulate.
#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct SimulateArgs {
    /// Fit a cost model to step records, one JSON object a line, instead of simulating
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Cost model",
        conflicts_with = "calibrate"
    )]
    pub(crate) fit: Option<PathBuf>,
    /// Run steps of many sizes on a model, write their records and fit a cost model, instead of simulating [default model:
    /// SmolLM2-135M-Instruct]
    #[arg(long, value_name = "MODEL", num_args = 0..=1, default_missing_value = "", help_heading = "Cost model")]
    pub(crate) calibrate: Option<String>,
    /// Threads that compute while calibrating [default: the CPU quota of the cgroup]
    #[arg(
        long,
        value_name = "COUNT",
        requires = "calibrate",
        help_heading = "Cost model"
    )]
    pub(crate) threads: Option<std::num::NonZeroU32>,
    /// Calibrate with the time that the process computes, divided by its threads, instead of the clock's: for machines with other work.
    /// Threads that wait without computing are then left out
    #[arg(long, requires = "calibrate", help_heading = "Cost model")]
    pub(crate) cpu_time: bool,
    /// File that --fit writes the cost model to, or --calibrate the step records [default: nowhere]
    #[arg(long, short, value_name = "FILE", help_heading = "Cost model")]
    pub(crate) output: Option<PathBuf>,
    /// How long steps take: a file that --fit wrote, or step=SECONDS,prefill_token=SECONDS,decode_seq=SECONDS,context_token=SECONDS,host=SECONDS
    #[arg(long, value_name = "FILE|PARTS", help_heading = "Cost model")]
    pub(crate) cost_model: Option<String>,

    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,

    /// Requests to play [default: 1000, or all of a trace, if no --duration is given]
    #[arg(
        long,
        visible_alias = "num-prompts",
        value_name = "COUNT",
        help_heading = "Measuring"
    )]
    pub(crate) num_requests: Option<u64>,
    /// Seconds that are counted, in virtual time [default: until all requests have ended]
    #[arg(long, value_name = "SECONDS", help_heading = "Measuring")]
    pub(crate) duration: Option<f64>,
    /// Seconds before them that are played and not counted
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0.0,
        help_heading = "Measuring"
    )]
    pub(crate) warmup: f64,
    /// Objectives that a request must meet to count, in milliseconds: ttft:MS, itl:MS (its 99th percentile), tpot:MS, e2el:MS
    #[arg(long, value_name = "KEY:MS", num_args = 1.., help_heading = "Measuring")]
    pub(crate) goodput: Vec<String>,
    /// Print JSON
    #[arg(long, help_heading = "Measuring")]
    pub(crate) json: bool,
}

/// The server; names and defaults are those of `kvasir serve`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Server")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct ServerArgs {
    /// Token budget of a step; a list is swept
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "2048")]
    pub(crate) max_num_batched_tokens: Vec<u32>,
    /// Most sequences in a step; a list is swept
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "128")]
    pub(crate) max_num_seqs: Vec<u32>,
    /// Most sequences that hold KV blocks [default: max-num-seqs]
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_num_active_seqs: Option<u32>,
    /// Longest prompt plus output
    #[arg(long, value_name = "TOKENS", default_value = "8192", value_parser = tokens)]
    pub(crate) max_model_len: u32,
    /// Tokens in a KV block
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub(crate) block_size: u32,
    /// KV blocks [default: enough for all sequences at full length]
    #[arg(long, visible_alias = "num-blocks", value_name = "COUNT")]
    pub(crate) num_gpu_blocks_override: Option<u32>,
    /// Share the KV blocks of equal prompt beginnings [default: on; --no-enable-prefix-caching turns it off]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        hide_default_value = true,
        hide_possible_values = true,
        action = clap::ArgAction::Set,
        overrides_with = "no_enable_prefix_caching"
    )]
    pub(crate) enable_prefix_caching: bool,
    /// The opposite
    #[arg(long, hide = true, overrides_with = "enable_prefix_caching")]
    pub(crate) no_enable_prefix_caching: bool,
    /// Largest chunk of one prompt in a step; 0 is no limit
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub(crate) long_prefill_token_threshold: u32,
    /// Order of waiting requests
    #[arg(long, value_name = "POLICY", default_value = "fcfs")]
    pub(crate) scheduling_policy: PolicyArg,
    /// kvasir, or vllm: a request that doesn't fit yet holds up all behind it, as in vLLM
    #[arg(long, value_name = "RULES", default_value = "kvasir")]
    pub(crate) scheduler_compat: RulesArg,
    /// Admit tenants by least service, weighted
    #[arg(long)]
    pub(crate) fair_share: bool,
    /// Let waiting requests of a higher class take the place of running ones of a lower class
    #[arg(long)]
    pub(crate) seat_preemption: bool,
    /// Waiting requests; more are refused
    #[arg(long, value_name = "COUNT", default_value_t = 1024)]
    pub(crate) max_num_queued_reqs: u32,
    /// Prompt tokens of all waiting requests; more are refused
    #[arg(long, value_name = "TOKENS", default_value = "16M", value_parser = count)]
    pub(crate) max_num_queued_tokens: u64,
    /// Steps that are planned before the oldest one has ended: 1, or 2 to hide the host's time
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub(crate) steps_in_flight: u32,
    /// Engines; a request goes to the one with the fewest requests
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) engines: u32,
}

/// The order of the waiting queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// First come, first served
    Fcfs,
    /// By the tenants' priority
    Priority,
}

/// Whose rules.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum RulesArg {
    /// Ours
    Kvasir,
    /// vLLM's
    Vllm,
}

/// Who asks for what, and when.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// Seed of everything that is drawn
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Clients that each ask again when they have their answer; a list is swept [default: 8, if nothing else is given]
    #[arg(long, visible_alias = "max-concurrency", value_name = "COUNT", value_delimiter = ',', conflicts_with_all = ["request_rate", "trace"])]
    pub(crate) clients: Vec<u32>,
    /// Pause of a client after each answer
    #[arg(long, value_name = "PAUSE", default_value = "0", conflicts_with_all = ["request_rate", "trace"])]
    pub(crate) client_pause: Pause,
    /// Seconds over which the clients' first requests are spread
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, conflicts_with_all = ["request_rate", "trace"])]
    pub(crate) ramp: f64,
    /// Requests per second, whatever the server does; inf is all at once; a list is swept
    #[arg(long, value_name = "RATE", value_delimiter = ',', conflicts_with = "trace")]
    pub(crate) request_rate: Vec<f64>,
    /// Shape of the gamma distribution of the gaps between requests: 1 is a Poisson process, less comes in bursts
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0, requires = "request_rate")]
    pub(crate) burstiness: f64,
    /// Requests come at equal distances
    #[arg(long, requires = "request_rate", conflicts_with = "burstiness")]
    pub(crate) constant_rate: bool,
    /// Tokens of a prompt, without its shared prefix; of a turn in a conversation
    #[arg(
        long,
        visible_alias = "random-input-len",
        value_name = "LENGTH",
        default_value = "256"
    )]
    pub(crate) prompt_len: Lengths,
    /// Tokens of an answer
    #[arg(
        long,
        visible_alias = "random-output-len",
        value_name = "LENGTH",
        default_value = "128"
    )]
    pub(crate) output_len: Lengths,
    /// Different prompt beginnings, and tokens of each, that come before a prompt's own tokens
    #[arg(long, value_name = "GROUPS:TOKENS", value_parser = prefix)]
    pub(crate) shared_prefix: Option<(u32, u32)>,
    /// Make conversations of so many requests, each with all that was said before
    #[arg(long, value_name = "LENGTH")]
    pub(crate) turns: Option<Lengths>,
    /// Pause between the turns of a conversation
    #[arg(long, value_name = "PAUSE", default_value = "0", requires = "turns")]
    pub(crate) turn_pause: Pause,
    /// A tenant with its share of the requests, its priority (lower runs earlier) and its weight under --fair-share; repeatable
    #[arg(long, value_name = "NAME:SHARE[:PRIORITY[:WEIGHT]]", value_parser = tenant)]
    pub(crate) tenant: Vec<kvasir_sim::Tenant>,
    /// Seconds after which a request is given up
    #[arg(long, value_name = "SECONDS")]
    pub(crate) request_timeout: Option<f64>,
    /// Recorded requests instead: JSON lines with timestamp (ms), input_length, output_length and optionally hash_ids, or a recording of the
    /// scheduler, which a dump of a server has inside
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_len", "output_len", "shared_prefix", "turns", "tenant", "request_timeout"])]
    pub(crate) trace: Option<PathBuf>,
    /// Tokens that an entry of hash_ids stands for
    #[arg(long, value_name = "TOKENS", default_value_t = 512, requires = "trace")]
    pub(crate) trace_block_size: u32,
    /// Play the trace so many times as fast; a list is swept
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', requires = "trace")]
    pub(crate) speed_up: Vec<f64>,
}

pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    if let Some(records) = &args.fit {
        return simulate::fit(records, args.output.as_deref(), args.json);
    }
    if let Some(model) = &args.calibrate {
        return simulate::calibrate(&Calibration {
            model: Some(model.clone()).filter(|model| !model.is_empty()),
            threads: args.threads,
            cpu_time: args.cpu_time,
            output: args.output.clone(),
            json: args.json,
        });
    }
    if args.output.is_some() {
        return Err(Failure::Usage(
            "--output belongs to --fit or --calibrate; use > to keep a report".to_owned(),
        ));
    }
    simulate::run(args)
}

/// Reads a cost model that is written out; a file is somebody else's business.
pub(crate) fn written_cost(text: &str) -> Option<Result<CostModel, kvasir_sim::CostError>> {
    text.contains('=').then(|| text.parse())
}

fn count(text: &str) -> Result<u64, String> {
    Count::parse(text).map(|count| count.0)
}

fn tokens(text: &str) -> Result<u32, String> {
    let count = count(text)?;
    u32::try_from(count).map_err(|_| format!("{count} tokens are more than {}", u32::MAX))
}

fn prefix(text: &str) -> Result<(u32, u32), String> {
    let parts = text
        .split_once(':')
        .and_then(|(groups, tokens)| Some((groups.parse().ok()?, tokens.parse().ok()?)));
    parts.ok_or_else(|| "write GROUPS:TOKENS, for example 16:512".to_owned())
}

fn tenant(text: &str) -> Result<kvasir_sim::Tenant, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let read = || {
        let (name, share) = (*parts.first()?, parts.get(1)?.parse().ok()?);
        let priority = parts.get(2).map_or(Some(0), |part| part.parse().ok())?;
        let weight = parts.get(3).map_or(Some(1), |part| part.parse().ok())?;
        (parts.len() <= 4 && !name.is_empty()).then(|| kvasir_sim::Tenant {
            name: name.to_owned(),
            share,
            priority,
            weight,
        })
    };
    read().ok_or_else(|| "write NAME:SHARE[:PRIORITY[:WEIGHT]], for example gold:0.2:-1:4".to_owned())
}
