// Follows a verification that runs in the background, and shows the page anew when it has ended.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const EACH_MS = 1000;
  const panel = document.getElementById("verification-run");
  const bar = document.getElementById("verification-bar");
  const doing = document.getElementById("verification-doing");

  function show(run) {
    if (run.total) {
      bar.max = run.total;
      bar.value = run.done;
    }
    doing.textContent = run.total ? `${run.doing}: ${run.done} of ${run.total}` : run.doing || "starting";
  }

  async function ask() {
    try {
      const answer = await fetch(panel.dataset.url);
      if (answer.redirected || !answer.ok) {
        doing.textContent = `the server answered ${answer.status}; are you still logged in?`;
        return;
      }
      const run = await answer.json();
      if (run.state !== "running") {
        window.location.reload();
        return;
      }
      show(run);
    } catch (trouble) {
      doing.textContent = `the server cannot be reached: ${trouble.message}`;
    }
    setTimeout(ask, EACH_MS);
  }

  ask();
});
