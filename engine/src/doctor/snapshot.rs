//! What one look at a server says, and what two of them say about the time between.

use super::exposition::{Histogram, Samples};

/// Whose names a server speaks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Server {
    /// It has our own figures.
    #[default]
    Kvasir,
    /// It has those of vLLM only.
    Vllm,
}

/// Ranks that hold a copy of the model together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ranks {
    /// Tensor parallel.
    pub(crate) tensor: f64,
    /// Pipeline parallel.
    pub(crate) pipeline: f64,
}

/// One look. What a server doesn't tell is `None`; counters and histograms are since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) server: Server,
    /// Requests that run.
    pub(crate) running: Option<f64>,
    /// Requests that wait.
    pub(crate) waiting: Option<f64>,
    /// Share of the KV blocks in use, of the fullest engine, 0 to 1.
    pub(crate) kv_usage: Option<f64>,
    /// KV blocks that nobody holds.
    pub(crate) free_blocks: Option<f64>,
    /// Tokens in a KV block.
    pub(crate) block_size: Option<f64>,
    pub(crate) preemptions: Option<f64>,
    /// Limits, over all engines.
    pub(crate) max_num_seqs: Option<f64>,
    pub(crate) max_num_batched_tokens: Option<f64>,
    /// Tokens per step.
    pub(crate) step_tokens: Option<Histogram>,
    /// Prompts of requests that finished, in tokens.
    pub(crate) prompt_tokens: Option<Histogram>,
    /// Prompt tokens of requests that have begun.
    pub(crate) prompt_tokens_total: Option<f64>,
    pub(crate) generation_tokens: Option<f64>,
    /// Seconds of requests: waiting, first token, from first scheduled to first token, between tokens.
    pub(crate) queue_seconds: Option<Histogram>,
    pub(crate) first_token_seconds: Option<Histogram>,
    pub(crate) prefill_seconds: Option<Histogram>,
    pub(crate) inter_token_seconds: Option<Histogram>,
    /// Seconds of steps: planned, taken by the executor, executed, waited for, completed, delivered.
    pub(crate) schedule: Option<Histogram>,
    pub(crate) launch: Option<Histogram>,
    pub(crate) execute: Option<Histogram>,
    pub(crate) wait: Option<Histogram>,
    pub(crate) complete: Option<Histogram>,
    pub(crate) deliver: Option<Histogram>,
    /// CPU seconds used, and seconds in which the threads were ready to run and had no CPU.
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) cpu_wait_seconds: Option<f64>,
    /// CPUs that the process may use.
    pub(crate) cpus: Option<f64>,
    /// Seconds without a step although there is work.
    pub(crate) stalled_seconds: Option<f64>,
    pub(crate) ranks: Option<Ranks>,
    /// Seconds of steps spent waiting for other tensor parallel ranks, and for other pipeline stages.
    pub(crate) collective: Option<Histogram>,
    pub(crate) pipeline_wait: Option<Histogram>,
    /// Whether full blocks of equal beginnings are shared.
    pub(crate) prefix_caching: Option<bool>,
    /// Prompt tokens looked up in the prefix cache, and found.
    pub(crate) prefix_queries: Option<f64>,
    pub(crate) prefix_hits: Option<f64>,
    /// Requests refused because a queue was full.
    pub(crate) rejections: Option<f64>,
}

impl Snapshot {
    /// Picks out of a scrape what the doctor looks at.
    pub(crate) fn of(samples: &Samples) -> Self {
        let rank = |key| samples.label_sum("kvasir_parallel_info", key);
        let caching = samples.label("vllm:cache_config_info", "enable_prefix_caching");
        let engines = samples.max("kvasir_engine_cpus");
        Self {
            server: if samples.has("kvasir_") {
                Server::Kvasir
            } else {
                Server::Vllm
            },
            running: samples.sum("vllm:num_requests_running"),
            waiting: samples.sum("vllm:num_requests_waiting"),
            kv_usage: samples.max("vllm:kv_cache_usage_perc"),
            free_blocks: samples.sum("kvasir_kv_blocks_free").or_else(|| {
                let all = samples.label_sum("vllm:cache_config_info", "num_gpu_blocks")?;
                Some((all * (1.0 - samples.max("vllm:kv_cache_usage_perc")?)).floor())
            }),
            block_size: samples
                .label("vllm:cache_config_info", "block_size")
                .and_then(|size| size.parse().ok())
                .filter(|size: &f64| size.is_finite()),
            preemptions: samples.sum("vllm:num_preemptions"),
            max_num_seqs: samples.sum("kvasir_max_num_seqs"),
            max_num_batched_tokens: samples.max("kvasir_max_num_batched_tokens"),
            step_tokens: samples.histogram("vllm:iteration_tokens_total"),
            prompt_tokens: samples.histogram("vllm:request_prompt_tokens"),
            prompt_tokens_total: samples.sum("vllm:prompt_tokens"),
            generation_tokens: samples.sum("vllm:generation_tokens"),
            queue_seconds: samples.histogram("vllm:request_queue_time_seconds"),
            first_token_seconds: samples.histogram("vllm:time_to_first_token_seconds"),
            prefill_seconds: samples.histogram("vllm:request_prefill_time_seconds"),
            inter_token_seconds: samples.histogram("vllm:inter_token_latency_seconds"),
            schedule: samples.histogram("kvasir_step_schedule_seconds"),
            launch: samples.histogram("kvasir_step_launch_seconds"),
            execute: samples.histogram("kvasir_step_execute_seconds"),
            wait: samples.histogram("kvasir_step_wait_seconds"),
            complete: samples.histogram("kvasir_step_complete_seconds"),
            deliver: samples.histogram("kvasir_step_deliver_seconds"),
            cpu_seconds: samples
                .sum("kvasir_engine_cpu_seconds")
                .or_else(|| samples.sum("process_cpu_seconds")),
            cpu_wait_seconds: samples.sum("kvasir_process_cpu_wait_seconds"),
            cpus: engines,
            stalled_seconds: samples.max("kvasir_engine_stalled_seconds"),
            ranks: rank("tensor")
                .zip(rank("pipeline"))
                .map(|(tensor, pipeline)| Ranks { tensor, pipeline }),
            collective: samples.histogram("kvasir_step_collective_seconds"),
            pipeline_wait: samples.histogram("kvasir_step_pipeline_wait_seconds"),
            prefix_caching: caching.map(|value| value.eq_ignore_ascii_case("true")),
            prefix_queries: samples.sum("vllm:prefix_cache_queries"),
            prefix_hits: samples.sum("vllm:prefix_cache_hits"),
            rejections: samples.sum("vllm:admission_rejections"),
        }
    }
}

/// Two looks at one server, some time apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'a> {
    pub(crate) before: &'a Snapshot,
    pub(crate) after: &'a Snapshot,
    /// Between the two; above 0.
    pub(crate) seconds: f64,
}

/// Chooses a gauge or counter.
type Number = fn(&Snapshot) -> Option<f64>;
/// Chooses a histogram.
type Histograms = fn(&Snapshot) -> &Option<Histogram>;

impl Window<'_> {
    /// What a gauge was at least at both looks; of one if the other doesn't tell.
    pub(crate) fn low(&self, gauge: Number) -> Option<f64> {
        self.both(gauge, f64::min)
    }

    /// What a gauge was at most at both looks.
    pub(crate) fn high(&self, gauge: Number) -> Option<f64> {
        self.both(gauge, f64::max)
    }

    fn both(&self, gauge: Number, choose: fn(f64, f64) -> f64) -> Option<f64> {
        match (gauge(self.before), gauge(self.after)) {
            (Some(before), Some(after)) => Some(choose(before, after)),
            (one, other) => one.or(other),
        }
    }

    /// What a counter counted between the looks; none if it went back.
    pub(crate) fn growth(&self, counter: Number) -> Option<f64> {
        let growth = counter(self.after)? - counter(self.before)?;
        (growth >= 0.0).then_some(growth)
    }

    /// Whether the second look can't be a later one at the same server: what only grows has shrunk, or it speaks other names.
    pub(crate) fn went_back(&self) -> bool {
        const COUNTERS: [Number; 5] = [
            |look| look.generation_tokens,
            |look| look.prompt_tokens_total,
            |look| look.prefix_queries,
            |look| look.preemptions,
            |look| look.step_tokens.as_ref().map(|steps| steps.count),
        ];
        let shrank = |counter: &Number| counter(self.after) < counter(self.before);
        self.before.server != self.after.server || COUNTERS.iter().any(shrank)
    }

    /// The growth of a counter per second.
    pub(crate) fn rate(&self, counter: Number) -> Option<f64> {
        Some(self.growth(counter)? / self.seconds)
    }

    /// What a histogram got between the looks.
    pub(crate) fn added(&self, histogram: Histograms) -> Option<Histogram> {
        let after = histogram(self.after).as_ref()?;
        match histogram(self.before) {
            Some(before) => after.since(before),
            // It was not there before anything was counted.
            None => Some(after.clone()),
        }
    }

    /// The mean of what a histogram got between the looks, or since the server's start if it got nothing.
    pub(crate) fn mean(&self, histogram: Histograms) -> Option<f64> {
        let recent = self.added(histogram).and_then(|added| added.mean());
        recent.or_else(|| histogram(self.after).as_ref()?.mean())
    }

    /// The time that a part of the steps took between the looks, in seconds.
    pub(crate) fn spent(&self, histogram: Histograms) -> Option<f64> {
        Some(self.added(histogram)?.sum)
    }

    /// Steps between the looks.
    pub(crate) fn steps(&self) -> Option<f64> {
        Some(self.added(|look| &look.step_tokens)?.count)
    }

    /// Whether requests wait at both looks.
    pub(crate) fn is_queueing(&self) -> bool {
        self.low(|look| look.waiting)
            .is_some_and(|waiting| waiting >= 1.0)
    }

    /// Whether nothing happened and nothing is to be done.
    pub(crate) fn is_idle(&self) -> bool {
        let nobody = |gauge| self.high(gauge).is_none_or(|count| count < 1.0);
        let nothing = self.steps().is_none_or(|steps| steps < 1.0)
            && self
                .growth(|look| look.generation_tokens)
                .is_none_or(|tokens| tokens < 1.0);
        nobody(|look: &Snapshot| look.running) && nobody(|look: &Snapshot| look.waiting) && nothing
    }
}
