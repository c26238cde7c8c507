//! A search API with one abusive client among well-behaved ones. The API has a counter for each client: every attempt raises the
//! counter, time lowers it, and a client above the threshold is locked out. A client that keeps on retrying stays locked out.
//!
//! ```text
//! cargo run --example penalty_box
//! cargo run --example penalty_box -- --ban 0.4 --longest-ban 4    # with bans, each twice as long as the one before
//! ```
//!
//! It prints all counters once a second, and writes a drawing to `target/penalty_box.svg`.

mod drawing;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use common::{exit_code, say, seconds};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};
use tollgate::{KeyedLimiter, Penalty, Rate, TryAcquireError};

/// The counters are read this often for the drawing.
const SAMPLE: Duration = Duration::from_millis(10);

/// A search API with one abusive client among well-behaved ones
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// Attempts that a counter admits
    #[arg(long, value_name = "N", default_value_t = 10)]
    threshold: u64,
    /// How much the counter falls in each step
    #[arg(long, value_name = "N", default_value_t = 2)]
    fall: u64,
    /// Length of a step
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    step: Duration,
    /// Denied attempts raise the counter up to this
    #[arg(long, value_name = "N", default_value_t = 20)]
    ceiling: u64,
    /// Length of the first ban; each further ban is twice as long (default: no bans, denied attempts count)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ban: Option<Duration>,
    /// Length of the longest ban
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = seconds, requires = "ban")]
    longest_ban: Duration,
    /// Length of the run
    #[arg(long, value_name = "SECONDS", default_value = "8", value_parser = seconds)]
    run: Duration,
    /// File for the drawing
    #[arg(long, value_name = "FILE", default_value = "target/penalty_box.svg")]
    svg: PathBuf,
}

impl Options {
    fn penalty(&self) -> Penalty {
        let penalty =
            Penalty::new(self.threshold, Rate::new(self.fall, self.step)).ceiling(self.ceiling);
        self.ban.map_or(penalty, |first| {
            penalty.ban(first).escalate(self.longest_ban)
        })
    }
}

type Client = &'static str;
type SearchApi = KeyedLimiter<Client>;

const CLIENTS: [Client; 4] = ["alice", "bob", "carol", "eve"];

/// When a client makes its attempts. eve retries constantly from 0.1 to 0.48 of the run, stops, and comes back at 0.86 with a low
/// rate.
fn visits(client: Client, run: Duration) -> Vec<Duration> {
    let every = |period: f64, from: f64, to: f64| {
        let (from, to) = (from * run.as_secs_f64(), to * run.as_secs_f64());
        let count = ((to - from) / period).ceil() as u32;
        (0..count).map(move |visit| Duration::from_secs_f64(from + f64::from(visit) * period))
    };
    match client {
        "alice" => every(0.8, 0.03, 1.0).collect(),
        "bob" => every(0.3, 0.05, 1.0).collect(),
        // Now and then a page that makes seven searches at once.
        "carol" => every(2.2, 0.06, 1.0)
            .flat_map(|page| (0..7).map(move |search| page + Duration::from_millis(20 * search)))
            .collect(),
        _ => every(0.043, 0.1, 0.48)
            .chain(every(0.4, 0.86, 1.0))
            .collect(),
    }
}

/// One attempt and its result.
struct Attempt {
    client: Client,
    at: Duration,
    served: bool,
}

/// The counter of a client at one instant.
struct Sample {
    client: Client,
    at: Duration,
    counter: u64,
    /// For how long the client is locked out, if it is.
    locked_out: Option<Duration>,
}

impl Sample {
    fn take(api: &SearchApi, client: Client, at: Duration) -> Self {
        let counter = api.snapshot(&client).map_or(0, |numbers| numbers.used);
        Self {
            client,
            at,
            counter,
            locked_out: api.check(&client, 1).retry_after(),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let api = SearchApi::new(options.penalty())?;
    say!(
        "policy of each client: {}",
        tollgate::Policy::from(options.penalty())
    );

    let start = Instant::now();
    let mut clients = JoinSet::new();
    for client in CLIENTS {
        clients.spawn(search(
            api.clone(),
            client,
            visits(client, options.run),
            start,
        ));
    }
    let samples = watch(&api, start, options).await;
    let mut attempts = Vec::new();
    while let Some(of_one) = clients.join_next().await {
        attempts.extend(of_one??);
    }

    report(&attempts, &samples);
    drawing::draw(&attempts, &samples, options)?;
    say!("drawing  {}", options.svg.display());
    Ok(ExitCode::SUCCESS)
}

/// Makes the attempts of one client, each at its time.
async fn search(
    api: SearchApi,
    client: Client,
    visits: Vec<Duration>,
    start: Instant,
) -> Result<Vec<Attempt>, TryAcquireError> {
    let mut attempts = Vec::new();
    for visit in visits {
        sleep_until(start + visit).await;
        let served = match api.try_acquire(&client) {
            Ok(_) => true,
            Err(TryAcquireError::Denied(_)) => false,
            Err(error) => return Err(error),
        };
        attempts.push(Attempt {
            client,
            at: start.elapsed(),
            served,
        });
    }
    Ok(attempts)
}

/// Reads all counters until the run is over, and prints them once a second.
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
    say!("\n{:>4.1} s  counter", now[0].at.as_secs_f64());
    for sample in now {
        let Sample {
            client, counter, ..
        } = sample;
        say!(
            "  {client:<6} {counter:>5}  {}  {}",
            bar(*counter, options),
            state(sample)
        );
    }
}

/// A bar from 0 to the ceiling, with a mark at the threshold.
fn bar(
    counter: u64,
    Options {
        threshold, ceiling, ..
    }: &Options,
) -> String {
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
    say!("\nclient   asked   served   denied   highest counter");
    for client in CLIENTS {
        let of_client = || attempts.iter().filter(|attempt| attempt.client == client);
        let (asked, served) = (
            of_client().count(),
            of_client().filter(|attempt| attempt.served).count(),
        );
        let highest = samples
            .iter()
            .filter(|sample| sample.client == client)
            .map(|sample| sample.counter)
            .max();
        let (denied, highest) = (asked - served, highest.unwrap_or(0));
        say!("{client:<6} {asked:>7} {served:>8} {denied:>8} {highest:>17}");
    }
}
