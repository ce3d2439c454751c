//! Reports for people.

use kvasir_sim::{Load, Point, Report, Summary};

use super::setup::Setup;

/// Settings that were left out and are named.
const MAX_SHOWN: usize = 8;

/// The whole report of one point.
pub(super) fn one(setup: &Setup, point: &Point, report: &Report) -> String {
    let mut text = Text::default();
    text.line(format_args!(
        "server       max-num-batched-tokens {}, max-num-seqs {}, {}",
        point.setting.max_num_batched_tokens,
        point.setting.max_num_seqs,
        setup.server_text()
    ));
    header(&mut text, setup);
    let counts = report.requests;
    text.line(format_args!(
        "window       {:.1} s after {} s of warm-up\n",
        report.window_seconds, setup.span.warmup_seconds
    ));
    text.line(format_args!("goodput      {:.3} requests/s", report.goodput));
    text.line(format_args!(
        "requests     {} arrived, {} completed ({} passed), {} failed ({} queue full, {} too long, {} timed out), {} outstanding",
        counts.arrivals,
        counts.completed,
        counts.passed,
        counts.failed(),
        counts.refused_queue_full,
        counts.refused_too_long,
        counts.timed_out,
        counts.outstanding
    ));
    if counts.cut_short > 0 {
        text.line(format_args!(
            "cut short    {} answers were shorter than asked: --max-model-len or the KV cache had no more room",
            counts.cut_short
        ));
    }
    text.line(format_args!(
        "throughput   {:.3} requests/s, {:.1} output tokens/s, {:.1} prompt tokens/s computed\n",
        report.request_throughput, report.output_token_throughput, report.prompt_token_throughput
    ));
    latencies(&mut text, report);
    let engine = report.engine;
    text.line(format_args!(
        "\nsteps        {} of {:.2} ms with {:.1} tokens and {:.1} decodes each, busy {:.1} %",
        engine.steps,
        engine.step_ms,
        engine.tokens_per_step,
        engine.decodes_per_step,
        engine.busy * 100.0
    ));
    let hits = engine.prefix_hit_rate.map_or_else(
        || "none looked up".to_owned(),
        |rate| format!("{:.1} %", rate * 100.0),
    );
    text.line(format_args!(
        "KV cache     {:.1} % in use on average, {:.1} % at most, {} preemptions, prefix hits {hits}",
        engine.kv_usage_mean * 100.0,
        engine.kv_usage_max * 100.0,
        engine.preemptions
    ));
    tenants(&mut text, report);
    text.0
}

/// A row for each point, and the setting to serve with.
pub(super) fn many(setup: &Setup, results: &[(Point, Report)], best: Option<usize>) -> String {
    let mut text = Text::default();
    text.line(format_args!("server       {}", setup.server_text()));
    header(&mut text, setup);
    text.line(format_args!(
        "\n{:>10} {:>8} {:>6} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>6}",
        "load",
        "tokens",
        "seqs",
        "goodput/s",
        "complete/s",
        "output/s",
        "TTFT p50",
        "TTFT p99",
        "ITL p50",
        "ITL p99",
        "failed",
        "preempt",
        "KV max"
    ));
    for (index, (point, report)) in results.iter().enumerate() {
        let load = match point.load {
            Load::Given => "as given".to_owned(),
            Load::RequestRate(rate) => format!("{rate}/s"),
            Load::Clients(count) => format!("{count} cl."),
            Load::SpeedUp(factor) => format!("x{factor}"),
        };
        let mark = if best == Some(index) { " <- best" } else { "" };
        let (ttft, itl) = (report.ttft_ms, report.itl_p99_ms);
        text.line(format_args!(
            "{load:>10} {:>8} {:>6} {:>10.3} {:>10.3} {:>9.1} {} {} {} {} {:>7} {:>8} {:>5.0}%{mark}",
            point.setting.max_num_batched_tokens,
            point.setting.max_num_seqs,
            report.goodput,
            report.request_throughput,
            report.output_token_throughput,
            ms(ttft.map(|summary| summary.p50)),
            ms(ttft.map(|summary| summary.p99)),
            ms(itl.map(|summary| summary.p50)),
            ms(itl.map(|summary| summary.p99)),
            report.requests.failed(),
            report.engine.preemptions,
            report.engine.kv_usage_max * 100.0
        ));
    }
    text.line(format_args!(
        "Times in ms; ITL is each request's 99th percentile, its median and 99th percentile over requests."
    ));
    notes(&mut text, setup, results);
    match best {
        Some(index) => {
            let (point, report) = &results[index];
            text.line(format_args!("\nbest goodput {:.3} requests/s:", report.goodput));
            text.line(format_args!("  {}", setup.serve_command(point.setting)));
        }
        None => text.line(format_args!(
            "\nno request met the objectives anywhere: nothing to propose"
        )),
    }
    text.0
}

/// What the rows don't say.
fn notes(text: &mut Text, setup: &Setup, results: &[(Point, Report)]) {
    let cut = results.iter().filter(|(_, report)| report.requests.cut_short > 0);
    let most = cut.clone().map(|(_, report)| report.requests.cut_short).max();
    if let Some(most) = most {
        text.line(format_args!(
            "In {} rows answers were shorter than asked, up to {most} in one: --max-model-len or the KV cache had no more room.",
            cut.count()
        ));
    }
    let left_out = setup.sweep.left_out();
    if !left_out.is_empty() {
        let shown: Vec<String> = (left_out.iter().take(MAX_SHOWN))
            .map(|setting| format!("{} / {}", setting.max_num_batched_tokens, setting.max_num_seqs))
            .collect();
        let more = if left_out.len() > MAX_SHOWN { ", ..." } else { "" };
        text.line(format_args!(
            "Left out, since fewer tokens than sequences are refused by a server: {} pairs of tokens / seqs ({}{more}).",
            left_out.len(),
            shown.join(", ")
        ));
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.0 += &line.to_string();
        self.0.push('\n');
    }
}

fn header(text: &mut Text, setup: &Setup) {
    text.line(format_args!("cost model   {}", setup.engines.cost));
    text.line(format_args!("workload     {}", setup.workload_text));
    text.line(format_args!("objectives   {}", setup.objectives));
}

fn latencies(text: &mut Text, report: &Report) {
    text.line(format_args!(
        "{:<12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "ms", "mean", "p50", "p90", "p95", "p99", "max"
    ));
    for (name, summary) in [
        ("TTFT", report.ttft_ms),
        ("ITL (p99)", report.itl_p99_ms),
        ("TPOT", report.tpot_ms),
        ("E2EL", report.e2el_ms),
        ("queue wait", report.queue_ms),
    ] {
        let Some(Summary {
            mean,
            p50,
            p90,
            p95,
            p99,
            max,
            ..
        }) = summary
        else {
            continue;
        };
        text.line(format_args!(
            "{name:<12} {} {} {} {} {} {}",
            number(mean),
            number(p50),
            number(p90),
            number(p95),
            number(p99),
            number(max)
        ));
    }
    if report.requests.single_token > 0 {
        text.line(format_args!(
            "{} requests of one token have no gaps",
            report.requests.single_token
        ));
    }
}

fn tenants(text: &mut Text, report: &Report) {
    if report.tenants.is_empty() {
        return;
    }
    text.line(format_args!(
        "\n{:<16} {:>9} {:>9} {:>10} {:>9} {:>9} {:>9}",
        "tenant", "arrived", "completed", "goodput/s", "failed", "TTFT p50", "TTFT p99"
    ));
    for tenant in &report.tenants {
        text.line(format_args!(
            "{:<16} {:>9} {:>9} {:>10.3} {:>9} {} {}",
            tenant.name,
            tenant.requests.arrivals,
            tenant.requests.completed,
            tenant.goodput,
            tenant.requests.failed(),
            ms(tenant.ttft_ms.map(|summary| summary.p50)),
            ms(tenant.ttft_ms.map(|summary| summary.p99))
        ));
    }
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| format!("{:>9}", "-"), number)
}

/// In nine places; with an exponent where more would be needed.
fn number(value: f64) -> String {
    if value < 1e7 {
        format!("{value:>9.1}")
    } else {
        format!("{value:>9.2e}")
    }
}
