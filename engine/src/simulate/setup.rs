//! From flags to what is simulated.

use std::path::Path;

use kvasir_engine_core::{KvGroup, Order, Policies, SchedulerConfig, Trace, TraceError};
use kvasir_files::{Limit, read_or_stdin};
use kvasir_service::dump::Dump;
use kvasir_sim::{
    Arrivals, Conversation, Engines, Load, Objectives, Recording, Setting, SharedPrefix, Span, Sweep,
    Synthetic, Workload,
};

use super::{cost, usage};
use crate::cli::simulate::{PolicyArg, RulesArg, ServerArgs, SimulateArgs, WorkloadArgs};
use crate::exit::Failure;
use crate::load::{check_block_size, check_budget};

/// Some millions of requests.
const TRACE_LIMIT: Limit = Limit {
    max_bytes: 1 << 30,
    advice: "give a part of it, for example its first million lines",
};
/// Points of a sweep; each keeps its report.
const MAX_POINTS: usize = 10_000;
/// Where neither a number of requests nor a duration is given.
const DEFAULT_NUM_REQUESTS: u64 = 1000;
/// Where nothing says when requests come.
const DEFAULT_CLIENTS: u32 = 8;

/// Everything that a simulation needs, and how to say it.
pub(super) struct Setup {
    pub(super) engines: Engines,
    pub(super) workload: Workload,
    pub(super) sweep: Sweep,
    pub(super) span: Span,
    pub(super) objectives: Objectives,
    pub(super) workload_text: String,
    /// Flags of the server that were given and aren't swept, ready for `kvasir serve`.
    serve_flags: String,
    /// The cap on running sequences, if one was given.
    max_num_active_seqs: Option<u32>,
    server_text: String,
}

impl Setup {
    pub(super) fn of(args: &SimulateArgs) -> Result<Self, Failure> {
        let objectives =
            Objectives::parse(args.goodput.iter().map(String::as_str)).map_err(|error| usage(&error))?;
        let engines = engines(args)?;
        let sweep = Sweep {
            token_budgets: args.server.max_num_batched_tokens.clone(),
            seq_limits: args.server.max_num_seqs.clone(),
            loads: loads(&args.workload),
        };
        if sweep.num_points() > MAX_POINTS {
            return Err(Failure::Usage(format!(
                "the lists make {} settings and loads, more than {MAX_POINTS}; shorten them",
                sweep.num_points()
            )));
        }
        let (workload, workload_text) = workload(&args.workload)?;
        let plays_to_the_end = args.duration.is_some() || args.workload.trace.is_some();
        let span = Span {
            num_requests: args
                .num_requests
                .or((!plays_to_the_end).then_some(DEFAULT_NUM_REQUESTS)),
            seconds: args.duration,
            warmup_seconds: args.warmup,
        };
        Ok(Self {
            sweep,
            serve_flags: serve_flags(&args.server),
            max_num_active_seqs: args.server.max_num_active_seqs,
            server_text: server_text(&args.server, &engines),
            engines,
            workload,
            span,
            objectives,
            workload_text,
        })
    }

    /// The command that serves with a setting.
    pub(super) fn serve_command(&self, setting: Setting) -> String {
        let Setting {
            max_num_batched_tokens,
            max_num_seqs,
        } = setting;
        // As a cap it is below the number of sequences, and above it the server refuses it.
        let cap = self.max_num_active_seqs.filter(|active| *active < max_num_seqs);
        let cap = cap.map_or_else(String::new, |active| format_flag("max-num-active-seqs", active));
        format!(
            "kvasir serve --max-num-batched-tokens {max_num_batched_tokens} --max-num-seqs {max_num_seqs}{cap}{}",
            self.serve_flags
        )
    }

    /// The server beside what is swept.
    pub(super) fn server_text(&self) -> &str {
        &self.server_text
    }
}

/// Refuses what a server would refuse, so that only settings are proposed that can be served with.
fn check(server: &ServerArgs) -> Result<(), Failure> {
    check_block_size(server.block_size)?;
    server
        .max_num_batched_tokens
        .iter()
        .try_for_each(|&tokens| check_budget(tokens))?;
    let queue = [
        ("--max-num-queued-reqs", u64::from(server.max_num_queued_reqs)),
        ("--max-num-queued-tokens", server.max_num_queued_tokens),
    ];
    if let Some((flag, _)) = queue.into_iter().find(|(_, limit)| *limit == 0) {
        return Err(Failure::Usage(format!("{flag} is 0; it must be at least 1")));
    }
    let most_seqs = server.max_num_seqs.iter().copied().max().unwrap_or(1);
    match server.max_num_active_seqs {
        Some(active) if active > most_seqs => Err(Failure::Usage(format!(
            "--max-num-active-seqs is {active}, above --max-num-seqs {most_seqs}; lower the first or raise the second"
        ))),
        _ => Ok(()),
    }
}

fn engines(args: &SimulateArgs) -> Result<Engines, Failure> {
    let server = &args.server;
    check(server)?;
    let first = |list: &[u32]| list.first().copied().unwrap_or(1);
    let most_seqs = server.max_num_seqs.iter().copied().max().unwrap_or(1);
    let max_num_seqs = first(&server.max_num_seqs);
    let rules = match server.scheduler_compat {
        RulesArg::Kvasir => Policies::serve(),
        RulesArg::Vllm => Policies::vllm(),
    };
    let num_blocks = server.num_gpu_blocks_override.map_or_else(
        || enough_blocks(most_seqs, server.max_model_len, server.block_size),
        Ok,
    )?;
    Ok(Engines {
        limits: SchedulerConfig {
            max_num_batched_tokens: first(&server.max_num_batched_tokens),
            max_num_seqs,
            // Each setting of a sweep lowers it to its own sequences.
            max_num_active_seqs: server.max_num_active_seqs.unwrap_or(most_seqs),
            max_model_len: server.max_model_len,
            block_size: server.block_size,
            num_blocks,
            groups: vec![KvGroup::Full],
            enable_prefix_caching: server.enable_prefix_caching && !server.no_enable_prefix_caching,
            long_prefill_token_threshold: server.long_prefill_token_threshold,
            max_num_queued_reqs: server.max_num_queued_reqs,
            max_num_queued_tokens: server.max_num_queued_tokens,
        },
        policies: Policies {
            order: match server.scheduling_policy {
                PolicyArg::Fcfs => Order::Arrival,
                PolicyArg::Priority => Order::Priority,
            },
            fair_share: server.fair_share,
            seat_preemption: server.seat_preemption,
            max_in_flight: server.steps_in_flight,
            ..rules
        },
        cost: cost::load(args.cost_model.as_deref())?,
        count: server.engines,
    })
}

/// The null block, and every sequence at full length.
fn enough_blocks(num_seqs: u32, max_model_len: u32, block_size: u32) -> Result<u32, Failure> {
    let per_seq = u64::from(max_model_len.div_ceil(block_size.max(1)));
    u32::try_from(u64::from(num_seqs) * per_seq + 1).map_err(|_| {
        Failure::Usage(format!(
            "{num_seqs} sequences of {max_model_len} tokens need more than 2^32 KV blocks of {block_size} tokens; lower one of \
             --max-num-seqs and --max-model-len, or give --num-gpu-blocks-override"
        ))
    })
}

fn loads(args: &WorkloadArgs) -> Vec<Load> {
    let rates = args.request_rate.iter().filter(|_| args.request_rate.len() > 1);
    let clients = args.clients.iter().filter(|_| args.clients.len() > 1);
    let mut loads: Vec<Load> = rates.map(|&rate| Load::RequestRate(rate)).collect();
    loads.extend(clients.map(|&count| Load::Clients(count)));
    loads.extend(args.speed_up.iter().map(|&factor| Load::SpeedUp(factor)));
    if loads.is_empty() {
        loads.push(Load::Given);
    }
    loads
}

fn workload(args: &WorkloadArgs) -> Result<(Workload, String), Failure> {
    if let Some(path) = &args.trace {
        let recording = recording(path, args.trace_block_size)?;
        let refused = match recording.num_refused() {
            0 => String::new(),
            count => format!(", without {count} that were refused then"),
        };
        let text = format!("{} requests of {}{refused}", recording.len(), path.display());
        return Ok((Workload::Recorded(recording), text));
    }
    let synthetic = Synthetic {
        seed: args.seed,
        arrivals: arrivals(args)?,
        prompts: args.prompt_len,
        outputs: args.output_len,
        shared_prefix: args
            .shared_prefix
            .map(|(groups, tokens)| SharedPrefix { groups, tokens }),
        conversation: args.turns.map(|turns| Conversation {
            turns,
            pause: args.turn_pause,
        }),
        tenants: args.tenant.clone(),
        timeout: args.request_timeout,
    };
    let text = workload_text(args, &synthetic);
    Ok((Workload::Synthetic(synthetic), text))
}

fn arrivals(args: &WorkloadArgs) -> Result<Arrivals, Failure> {
    let Some(&per_second) = args.request_rate.first() else {
        return Ok(Arrivals::Clients {
            count: args.clients.first().copied().unwrap_or(DEFAULT_CLIENTS),
            pause: args.client_pause,
            ramp_seconds: args.ramp,
        });
    };
    if args.request_rate.iter().all(|&rate| rate == f64::INFINITY) && args.request_rate.len() == 1 {
        return Ok(Arrivals::AtOnce);
    }
    if args.request_rate.contains(&f64::INFINITY) {
        return Err(Failure::Usage(
            "a --request-rate of inf is all at once and can't be swept with others".to_owned(),
        ));
    }
    Ok(if args.constant_rate {
        Arrivals::Constant { per_second }
    } else {
        Arrivals::Rate {
            per_second,
            burstiness: args.burstiness,
        }
    })
}

/// A scheduler's recording says in its first bytes that it is one, and a server's dump may have one inside; all else is JSON lines.
fn recording(path: &Path, block_tokens: u32) -> Result<Recording, Failure> {
    let bytes = read_or_stdin(path, TRACE_LIMIT)?;
    let in_file = |error: &dyn std::error::Error| Failure::Usage(format!("{}: {error}", path.display()));
    if let Ok(dump) = Dump::from_bytes(&bytes) {
        let trace = dump.trace().map_err(|error| in_file(&error))?;
        return Recording::from_trace(&trace).map_err(|error| in_file(&error));
    }
    match Trace::from_bytes(&bytes) {
        Ok(trace) => Recording::from_trace(&trace).map_err(|error| in_file(&error)),
        Err(TraceError::Magic) => {
            let text = String::from_utf8(bytes).map_err(|error| in_file(&error))?;
            Recording::from_lines(&text, block_tokens).map_err(|error| in_file(&error))
        }
        Err(error) => Err(in_file(&error)),
    }
}

fn workload_text(args: &WorkloadArgs, synthetic: &Synthetic) -> String {
    let mut text = match synthetic.arrivals {
        Arrivals::AtOnce => "all at once".to_owned(),
        Arrivals::Rate { burstiness, .. } if args.request_rate.len() > 1 => {
            format!("burstiness {burstiness}")
        }
        Arrivals::Rate {
            per_second,
            burstiness,
        } => format!("{per_second} requests/s, burstiness {burstiness}"),
        Arrivals::Constant { .. } if args.request_rate.len() > 1 => "at equal distances".to_owned(),
        Arrivals::Constant { per_second } => format!("{per_second} requests/s at equal distances"),
        Arrivals::Clients { pause, .. } if args.clients.len() > 1 => format!("pause {pause} s"),
        Arrivals::Clients { count, pause, .. } => format!("{count} clients, pause {pause} s"),
    };
    let mut add = |part: String| text.push_str(&part);
    if let Some(SharedPrefix { groups, tokens }) = synthetic.shared_prefix {
        add(format!(", shared prefix {groups} x {tokens}"));
    }
    add(format!(
        ", prompt {}, output {}",
        synthetic.prompts, synthetic.outputs
    ));
    if let Some(Conversation { turns, pause }) = synthetic.conversation {
        add(format!(", {turns} turns with a pause of {pause} s"));
    }
    if let Some(timeout) = synthetic.timeout {
        add(format!(", timeout {timeout} s"));
    }
    add(format!(", seed {}", synthetic.seed));
    text
}

fn server_text(args: &ServerArgs, engines: &Engines) -> String {
    let limits = &engines.limits;
    let mut text = format!(
        "{} KV blocks of {} tokens, prefix caching {}, {} rules",
        limits.num_blocks,
        limits.block_size,
        if limits.enable_prefix_caching { "on" } else { "off" },
        match args.scheduler_compat {
            RulesArg::Kvasir => "kvasir's",
            RulesArg::Vllm => "vLLM's",
        },
    );
    for (is_on, part) in [
        (args.scheduling_policy == PolicyArg::Priority, "by priority"),
        (args.fair_share, "fair shares"),
        (args.seat_preemption, "seat preemption"),
    ] {
        if is_on {
            text.push_str(", ");
            text.push_str(part);
        }
    }
    let counted = |count: u32, what: &str| {
        if count > 1 {
            format!(", {count} {what}")
        } else {
            String::new()
        }
    };
    text.push_str(&counted(engines.policies.max_in_flight, "steps in flight"));
    text.push_str(&counted(engines.count, "engines"));
    text
}

/// What differs from the server's defaults and that it has a flag for.
fn serve_flags(args: &ServerArgs) -> String {
    let mut flags = String::new();
    let mut add = |name: &str, value: Option<u32>| {
        if let Some(value) = value {
            flags.push_str(&format_flag(name, value));
        }
    };
    let unless = |value: u32, default: u32| (value != default).then_some(value);
    add("max-model-len", unless(args.max_model_len, 8192));
    add("block-size", unless(args.block_size, 16));
    add("num-gpu-blocks-override", args.num_gpu_blocks_override);
    add(
        "long-prefill-token-threshold",
        unless(args.long_prefill_token_threshold, 0),
    );
    add("max-num-queued-reqs", unless(args.max_num_queued_reqs, 1024));
    for (is_given, flag) in [
        (
            !args.enable_prefix_caching || args.no_enable_prefix_caching,
            " --no-enable-prefix-caching",
        ),
        (
            args.scheduling_policy == PolicyArg::Priority,
            " --scheduling-policy priority",
        ),
        (
            args.scheduler_compat == RulesArg::Vllm,
            " --scheduler-compat vllm",
        ),
        (args.steps_in_flight == 2, " --async-scheduling"),
    ] {
        if is_given {
            flags.push_str(flag);
        }
    }
    flags
}

fn format_flag(name: &str, value: u32) -> String {
    format!(" --{name} {value}")
}
