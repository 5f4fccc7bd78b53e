// White space made visible under each token field, and the live preview of a strategy.
"use strict";

(() => {
  const MARKS = { " ": "·", "\t": "→", "\n": "⏎\n", "\r": "␍", "\u00a0": "⍽", "\u3000": "□" };
  const PAUSE_MS = 150;

  const visible = (text) => Array.from(text, (character) => MARKS[character] ?? character).join("");

  function showWhiteSpace(area) {
    const mirror = document.createElement("output");
    mirror.className = "strategy-token strategy-mirror";
    mirror.htmlFor = area.id;
    const both = document.createElement("div");
    area.replaceWith(both);
    both.append(area, mirror);
    const update = () => {
      mirror.textContent = area.value === "" ? "(empty)" : visible(area.value);
      mirror.classList.toggle("strategy-empty", area.value === "");
    };
    area.addEventListener("input", update);
    update();
  }

  function showMessage(list, message) {
    list.replaceChildren();
    if (message === null) {
      const item = document.createElement("dd");
      item.className = "strategy-empty";
      item.textContent = "(needs content)";
      list.append(item);
      return;
    }
    for (const [field, text] of Object.entries(message)) {
      if (field === "role") continue;
      const name = document.createElement("dt");
      name.textContent = field;
      const value = document.createElement("dd");
      value.className = "strategy-token";
      value.textContent = visible(text);
      list.append(name, value);
    }
  }

  function showErrors(errors) {
    const list = document.getElementById("strategy-errors");
    const lines = Object.entries(errors).flatMap(([field, messages]) => messages.map((text) => `${field}: ${text}`));
    list.replaceChildren(
      ...lines.map((line) => {
        const item = document.createElement("li");
        item.textContent = line;
        return item;
      })
    );
    list.hidden = lines.length === 0;
    document.getElementById("strategy-shown").classList.toggle("strategy-stale", lines.length > 0);
  }

  function show(preview) {
    showErrors({});
    document.getElementById("strategy-token-route").hidden = !preview.token_route;
    showMessage(document.getElementById("strategy-content-done"), preview.content_done);
    showMessage(document.getElementById("strategy-thinking-partial"), preview.thinking_partial);
    document.getElementById("strategy-body").textContent = JSON.stringify(preview.body, null, 2);
  }

  function livePreview(panel) {
    const form = panel.closest("form");
    let timer = 0;
    let running = null;

    async function ask() {
      running?.abort();
      const mine = (running = new AbortController());
      const sent = new FormData(form);
      sent.set("strategy_pk", panel.dataset.pk);
      try {
        const answer = await fetch(panel.dataset.url, { method: "POST", body: sent, signal: mine.signal });
        if (answer.redirected || !answer.ok) {
          showErrors({ Preview: [`the server answered ${answer.status}; are you still logged in?`] });
          return;
        }
        const preview = await answer.json();
        if (preview.errors) showErrors(preview.errors);
        else show(preview);
      } catch (trouble) {
        if (trouble.name !== "AbortError") showErrors({ Preview: [`the server cannot be reached: ${trouble.message}`] });
      }
    }

    const soon = () => {
      clearTimeout(timer);
      timer = setTimeout(ask, PAUSE_MS);
    };
    form.addEventListener("input", soon);
    form.addEventListener("change", soon);
    ask();
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("textarea[data-white-space]").forEach(showWhiteSpace);
    const panel = document.getElementById("strategy-preview");
    if (panel) livePreview(panel);
  });
})();
