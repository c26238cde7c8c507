//! The processes, which are killed when this is dropped.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::message::Message;
use crate::options::Options;

#[derive(Debug)]
pub(crate) struct Processes {
    children: Vec<Child>,
    messages: UnboundedReceiver<(usize, Option<Message>)>,
}

impl Processes {
    pub(crate) fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?;
        let (sender, messages) = unbounded_channel();
        let mut processes = Self {
            children: Vec::new(),
            messages,
        };
        for index in 0..usize::from(options.processes) {
            let mut child = Command::new(&program)
                .args(options.of_replica())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
            let output = child.stdout.take();
            processes.children.push(child);
            let sender = sender.clone();
            thread::Builder::new().spawn(move || {
                for line in output
                    .into_iter()
                    .flat_map(|output| BufReader::new(output).lines())
                    .map_while(Result::ok)
                {
                    if let Some(message) = Message::read(&line) {
                        _ = sender.send((index, Some(message)));
                    }
                }
                _ = sender.send((index, None));
            })?;
        }
        Ok(processes)
    }

    /// The next message of any process, with its index. A process that has ended has no message. `None`: all have ended.
    pub(crate) async fn next(&mut self) -> Option<(usize, Option<Message>)> {
        self.messages.recv().await
    }

    /// Lets all processes begin; they count the time of the run from this instant.
    pub(crate) fn go(&mut self, start: Duration) -> Result<(), Box<dyn Error>> {
        for child in &mut self.children {
            if let Some(input) = &mut child.stdin {
                writeln!(input, "{}", start.as_micros())?;
            }
        }
        Ok(())
    }

    /// Kills a process by SIGKILL, so that it cannot give anything back.
    pub(crate) fn kill(&mut self, index: usize) -> Result<(), Box<dyn Error>> {
        Ok(self.children[index].kill()?)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            _ = child.kill();
            _ = child.wait();
        }
    }
}
