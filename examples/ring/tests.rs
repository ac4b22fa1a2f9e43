//! The program, and a producer whose consumer dies.

use super::{CONSUMER_ON, main};
use std::{env, error::Error, process::Command, thread, time::Duration};

/// The environment variable that makes a consumer die.
const DIES: &str = "GPU_VMM_EXAMPLE_CONSUMER_DIES";

/// Runs as the test, in a second process as a producer whose consumer dies, and in two more as the consumers.
#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    let [consumer, dies] = [CONSUMER_ON, DIES].map(|name| env::var_os(name).is_some());
    if consumer && dies {
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(50));
            std::process::abort();
        });
    }
    main()?;
    if !consumer {
        let output = Command::new(env::current_exe()?).arg("--nocapture").env(DIES, "1").output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let said = ["the other process is gone", "the consumer has ended early"];
        assert!(!output.status.success() && said.iter().any(|said| text.contains(said)), "{text}");
    }
    Ok(())
}
