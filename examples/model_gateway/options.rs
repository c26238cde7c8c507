//! The command line, and the policy that it makes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, value_parser};
use common::{Human, seconds};
use indicatif::HumanCount;
use tollgate::{MaxConcurrency, Policy, Rate, TokenBucket};

use crate::gateway;

/// Calls a model within slots, requests and tokens a minute, with and without settling what each call has used
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Options {
    /// Calls in flight at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) slots: u64,
    /// Requests a minute
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) requests: u64,
    /// Tokens a minute
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    pub(crate) tokens: u64,
    /// Length of the "minute" of all limits, the provider's too
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) minute: Duration,
    /// Longest answer that a call asks for
    #[arg(long, value_name = "TOKENS", default_value_t = 1_000, value_parser = value_parser!(u64).range(1..=20_000))]
    pub(crate) max_tokens: u64,
    /// Tokens that a call reserves for its answer (default: as many as --max-tokens)
    #[arg(long, value_name = "TOKENS")]
    estimate: Option<u64>,
    /// Tokens a minute that the provider allows (default: as many as --tokens)
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    provider_tokens: Option<u64>,
    /// Tasks, each of which makes one call after the other
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) tasks: u32,
    /// Length of the run
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) run: Duration,
    /// Seed of the lengths of prompts and answers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// File for the drawing
    #[arg(long, value_name = "FILE", default_value = "target/model_gateway.svg")]
    pub(crate) svg: PathBuf,
}

impl Options {
    pub(crate) fn policy(&self) -> Policy {
        let requests = TokenBucket::new(
            Rate::new(self.requests, self.minute),
            (self.requests / 4).max(1),
        );
        let tokens = TokenBucket::new(Rate::new(self.tokens, self.minute), self.burst());
        MaxConcurrency::new(self.slots)
            .per_request()
            .and(requests.per_request())
            .and(tokens.counting("tokens"))
    }

    /// A quarter of a minute's tokens, and at least the estimate of one call. The provider's buckets hold what comes in a minute.
    /// The difference is for requests that are late and arrive together, and for calls whose estimate is charged here while the
    /// provider, which counts what they use, has its buckets full.
    pub(crate) fn burst(&self) -> u64 {
        self.largest_estimate().max(self.tokens / 4)
    }

    /// Tokens a second.
    pub(crate) fn rate(&self) -> f64 {
        self.tokens as f64 / self.minute.as_secs_f64()
    }

    pub(crate) fn estimate(&self) -> u64 {
        self.estimate.unwrap_or(self.max_tokens)
    }

    pub(crate) fn provider_tokens(&self) -> u64 {
        self.provider_tokens.unwrap_or(self.tokens)
    }

    fn largest_estimate(&self) -> u64 {
        gateway::LARGEST_PROMPT.saturating_add(self.estimate())
    }

    /// With a low rate, most calls would never be made.
    pub(crate) fn refuse_long_waits(&self) -> Result<(), String> {
        for (option, units, a_minute) in [
            ("requests", 1, self.requests),
            ("tokens", self.largest_estimate(), self.tokens),
        ] {
            let minutes = units as f64 / a_minute as f64;
            let wait = Duration::try_from_secs_f64(minutes * self.minute.as_secs_f64())
                .unwrap_or(Duration::MAX);
            // A rate of 0 is an error of the limiter.
            if a_minute > 0 && wait > self.run {
                let least = (units as f64 * self.minute.div_duration_f64(self.run)).ceil() as u64;
                let ([wait, run], least) = ([wait, self.run].map(Human), HumanCount(least));
                return Err(format!(
                    "a call would wait {wait}, and the run takes {run}: give --{option} of {least} or more"
                ));
            }
        }
        Ok(())
    }
}
