//! A page with live charts of busy limiters, whose policies its sliders change.
//!
//! ```text
//! cargo run --example dashboard                            # http://127.0.0.1:9185, until it is interrupted
//! cargo run --example dashboard -- --listen 127.0.0.1:0    # on a free port
//! ```
//!
//! - `panels` has the limiters, and what the page may change of each.
//! - `load` is their callers, and `tenants` counts the requests of each.
//! - `leaks` leaks permits, and sees them reclaimed.
//! - `feed` samples the limiters, and sends their numbers to the pages.
//! - `pages` answers browsers. The charts are drawn by uPlot, whose files lie in `assets`, so that no network is needed.
//!
//! The exit code is 2 with one line when something failed, such as an address that is in use.

mod feed;
mod leaks;
mod load;
mod pages;
mod panels;
mod tenants;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use common::{exit_code, say};
use tokio::net::TcpListener;

use crate::feed::{Feed, Sampler};
use crate::panels::Panel;

/// Serves a page with live charts of busy limiters
#[derive(Debug, Parser)]
struct Options {
    /// Where to serve; port 0 is a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9185")]
    listen: SocketAddr,
}

/// The state that all pages show.
struct Board {
    panels: Vec<Panel>,
    feed: Feed,
}

impl Board {
    fn panel(&self, name: &str) -> Option<&Panel> {
        self.panels.iter().find(|panel| panel.about.name == name)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let board = Arc::new(Board {
        panels: panels::all()?,
        feed: Feed::new(),
    });
    let listener = TcpListener::bind(options.listen).await;
    let listener =
        listener.map_err(|error| format!("cannot serve on {}: {error}", options.listen))?;
    for (nth, panel) in board.panels.iter().enumerate() {
        for tenant in 0..panel.about.tenants.len() {
            tokio::spawn(load::call(Arc::clone(&board), nth, tenant));
        }
    }
    tokio::spawn(Sampler::new(Arc::clone(&board)).run());
    say!("http://{}", listener.local_addr()?);
    axum::serve(listener, pages::router(board)).await?;
    Ok(ExitCode::SUCCESS)
}
