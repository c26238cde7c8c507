//! The processes of the instances, which are killed when this is dropped.

use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::message;
use crate::options::Options;

pub(crate) struct Instances {
    children: Vec<Child>,
    /// The addresses of each instance for users and for operators.
    pub(crate) addresses: Vec<(SocketAddr, SocketAddr)>,
}

impl Instances {
    /// Starts the instances, and waits until they listen.
    pub(crate) fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?;
        let mut instances = Self {
            children: Vec::new(),
            addresses: Vec::new(),
        };
        for _ in 0..options.instances {
            // The instance ends when its standard input is closed, also if this process is killed.
            let mut command = Command::new(&program);
            command
                .args(options.of_instance())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            instances.children.push(
                command
                    .spawn()
                    .map_err(|error| format!("cannot start {}: {error}", program.display()))?,
            );
        }
        for (child, nth) in instances.children.iter_mut().zip(1..) {
            let mut line = String::new();
            if let Some(output) = &mut child.stdout {
                BufReader::new(output).read_line(&mut line)?;
            }
            instances
                .addresses
                .push(message::read(&line).map_err(|why| format!("instance {nth}: {why}"))?);
        }
        Ok(instances)
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        for child in &mut self.children {
            _ = child.kill();
            _ = child.wait();
        }
    }
}
