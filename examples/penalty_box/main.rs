//! One abuser among clients who behave, before a search API that keeps a counter for each: it rises with every attempt, falls
//! with time, and locks out who is above the threshold. Who keeps on asking stays out.
//!
//! ```text
//! cargo run --example penalty_box
//! cargo run --example penalty_box -- --ban 0.4 --longest-ban 4    # bans instead, each twice as long as the last
//! ```
//!
//! It prints all counters once a second, and ends with a drawing in `target/penalty_box.svg`.

mod drawing;
#[path = "../plot/mod.rs"]
mod plot;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};
use tollgate::{KeyedLimiter, Penalty, Rate, TryAcquireError};

/// How often the counters are looked at for the drawing.
const SAMPLE: Duration = Duration::from_millis(10);

/// One abuser among clients who behave, before a search API
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// Attempts that the counter admits
    #[arg(long, value_name = "N", default_value_t = 10)]
    threshold: u64,
    /// What a step takes off the counter
    #[arg(long, value_name = "N", default_value_t = 2)]
    fall: u64,
    /// How long a step is
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    step: Duration,
    /// The highest that denied attempts raise the counter
    #[arg(long, value_name = "N", default_value_t = 20)]
    ceiling: u64,
    /// Lock out for this long instead of counting denied attempts; each further ban is twice as long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ban: Option<Duration>,
    /// The longest ban
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = seconds, requires = "ban")]
    longest_ban: Duration,
    /// How long all of it takes
    #[arg(long, value_name = "SECONDS", default_value = "8", value_parser = seconds)]
    run: Duration,
    /// Where the drawing goes
    #[arg(long, value_name = "FILE", default_value = "target/penalty_box.svg")]
    svg: PathBuf,
}

impl Options {
    fn penalty(&self) -> Penalty {
        let penalty = Penalty::new(self.threshold, Rate::new(self.fall, self.step)).ceiling(self.ceiling);
        self.ban.map_or(penalty, |first| penalty.ban(first).escalate(self.longest_ban))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3_600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give it a number of seconds from 0.001 to 3600".into()),
    }
}

type Client = &'static str;
type SearchApi = KeyedLimiter<Client>;

const CLIENTS: [Client; 4] = ["alice", "bob", "carol", "eve"];

/// When a client asks, as shares of the run: eve hammers for a good third of it, is quiet, and comes back with manners.
fn visits(client: Client, run: Duration) -> Vec<Duration> {
    let every = |period: f64, from: f64, to: f64| {
        let (from, to) = (from * run.as_secs_f64(), to * run.as_secs_f64());
        let count = ((to - from) / period).ceil() as u32;
        (0..count).map(move |visit| Duration::from_secs_f64(from + f64::from(visit) * period))
    };
    match client {
        "alice" => every(0.8, 0.03, 1.0).collect(),
        "bob" => every(0.3, 0.05, 1.0).collect(),
        // A page that sends seven searches, now and then.
        "carol" => {
            every(2.2, 0.06, 1.0).flat_map(|page| (0..7).map(move |search| page + Duration::from_millis(20 * search))).collect()
        }
        _ => every(0.043, 0.1, 0.48).chain(every(0.4, 0.86, 1.0)).collect(),
    }
}

/// What became of one attempt.
struct Attempt {
    client: Client,
    at: Duration,
    served: bool,
}

/// A counter at one instant.
struct Sample {
    client: Client,
    at: Duration,
    counter: u64,
    /// Denied, and for how long.
    locked_out: Option<Duration>,
}

impl Sample {
    fn take(api: &SearchApi, client: Client, at: Duration) -> Self {
        let counter = api.snapshot(&client).map_or(0, |numbers| numbers.used);
        Self { client, at, counter, locked_out: api.check(&client, 1).retry_after() }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let api = SearchApi::new(options.penalty())?;
    println!("{}", tollgate::Policy::from(options.penalty()));

    let start = Instant::now();
    let mut clients = JoinSet::new();
    for client in CLIENTS {
        clients.spawn(search(api.clone(), client, visits(client, options.run), start));
    }
    let samples = watch(&api, start, options).await;
    let mut attempts = Vec::new();
    while let Some(of_one) = clients.join_next().await {
        attempts.extend(of_one??);
    }

    report(&attempts, &samples);
    drawing::draw(&attempts, &samples, options)?;
    println!("drawing in {}", options.svg.display());
    Ok(())
}

/// A client's attempts, each at its time.
async fn search(api: SearchApi, client: Client, visits: Vec<Duration>, start: Instant) -> Result<Vec<Attempt>, TryAcquireError> {
    let mut attempts = Vec::new();
    for visit in visits {
        sleep_until(start + visit).await;
        let served = match api.try_acquire(&client) {
            Ok(_) => true,
            Err(TryAcquireError::Denied(_)) => false,
            Err(error) => return Err(error),
        };
        attempts.push(Attempt { client, at: start.elapsed(), served });
    }
    Ok(attempts)
}

/// Looks at all counters until the run is over, and prints them once a second.
async fn watch(api: &SearchApi, start: Instant, options: &Options) -> Vec<Sample> {
    let mut ticks = interval(SAMPLE);
    let (mut samples, mut dump_at) = (Vec::new(), Duration::from_secs(1));
    loop {
        let at = ticks.tick().await - start;
        samples.extend(CLIENTS.map(|client| Sample::take(api, client, at)));
        if at >= dump_at.min(options.run) {
            dump(&samples[samples.len() - CLIENTS.len()..], options);
            dump_at += Duration::from_secs(1);
        }
        if at >= options.run {
            return samples;
        }
    }
}

fn dump(now: &[Sample], options: &Options) {
    println!("\n{:>4.1} s  counter", now[0].at.as_secs_f64());
    for sample in now {
        println!("  {:<6} {:>5}  {}  {}", sample.client, sample.counter, bar(sample.counter, options), state(sample));
    }
}

/// Up to the ceiling, with a mark at the threshold.
fn bar(counter: u64, Options { threshold, ceiling, .. }: &Options) -> String {
    const WIDTH: u64 = 30;
    let most = (*ceiling).max(*threshold);
    let cells = |units: u64| (u128::from(units) * u128::from(WIDTH) / u128::from(most)) as u64;
    (1..=WIDTH)
        .map(|cell| match cell {
            _ if cell <= cells(counter) => '#',
            _ if cell == cells(*threshold) => '|',
            _ => '.',
        })
        .collect()
}

fn state(sample: &Sample) -> String {
    match sample.locked_out {
        Some(rest) => format!("locked out for {:.2} s", rest.as_secs_f64()),
        None => "ok".to_owned(),
    }
}

fn report(attempts: &[Attempt], samples: &[Sample]) {
    println!("\nclient   asked   served   denied   highest counter");
    for client in CLIENTS {
        let of_client = || attempts.iter().filter(|attempt| attempt.client == client);
        let (asked, served) = (of_client().count(), of_client().filter(|attempt| attempt.served).count());
        let highest = samples.iter().filter(|sample| sample.client == client).map(|sample| sample.counter).max();
        println!("{client:<6} {asked:>7} {served:>8} {:>8} {:>17}", asked - served, highest.unwrap_or(0));
    }
}
