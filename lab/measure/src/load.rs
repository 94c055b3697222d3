//! Competing load: busy threads beside the measurement, the same number on each core.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Result;

use crate::pin;
use crate::placement::Cores;

/// The most busy threads. More show nothing new and take long.
pub const THREADS_MAX: u32 = 256;

/// Busy threads that end when this is dropped. The scheduler gives each of them the weight of a process.
#[derive(Debug)]
pub struct Load {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts this number of threads, alternating between the cores of source and target. It fails on a core that this
    /// process may not use.
    pub fn start(count: u32, cores: Cores) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut load = Self { is_over, threads: Vec::new() };
        for core in [cores.source, cores.target].into_iter().cycle().take(count as usize) {
            let (sender, receiver) = std::sync::mpsc::channel();
            let is_over = Arc::clone(&load.is_over);
            load.threads.push(std::thread::spawn(move || {
                let pinned = core.map_or(Ok(()), pin::pin_to);
                let is_pinned = pinned.is_ok();
                let _gone = sender.send(pinned);
                // Relaxed: no other data depends on it.
                while is_pinned && !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }));
            receiver.recv()??;
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_thread_runs_on_its_core_and_ends() {
        let (first, second) = pin::two_cores();
        let busy = || -> usize {
            let tasks = std::fs::read_dir("/proc/self/task").expect("this process").flatten();
            let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
            stats.filter(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" R"))).count()
        };
        let before = busy();
        let load = Load::start(5, Cores { source: Some(first), target: Some(second) }).expect("a load");
        assert!(busy() >= before + 4, "{} busy threads, {before} before", busy());
        drop(load);
        assert!(Load::start(1, Cores { source: Some(u32::MAX), target: None }).is_err());
    }
}
