/* The program of a conformance report: a list of tests that can be searched and filtered, and the story of
 * one of them. Texts go into the page as text nodes only: what a driver says is never markup. */
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const BAD = ["crash", "timeout", "device-lost", "fail"];
  const ORDER = [...BAD, "xpass", "xfail", "waived", "unsupported", "pass"];
  const at = (id) => document.getElementById(id);

  /** An element with a class and children; strings become text. */
  function make(name, className, ...children) {
    const element = document.createElement(name);
    if (className) element.className = className;
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  const rank = ({ record: { status } }) => (BAD.includes(status) ? 0 : ORDER.indexOf(status));
  const tests = data.tests
    .map((test, place) => ({ ...test, place }))
    // Failures of all kinds first, in the order of the suite; then by outcome.
    .sort((a, b) => rank(a) - rank(b) || a.place - b.place);
  for (const test of tests) {
    const { id, failure, step } = test.record;
    test.text = [id, test.about, failure?.message, step].join("\n").toLowerCase();
  }

  const wanted = new Set();
  let current = null;

  /** Whether a word is in the texts of a test; the name of a rule is that rule, and not R21 for R2. */
  const has = (test, word) =>
    /^[rh]\d+$/.test(word)
      ? (test.rules ?? []).some((rule) => rule.toLowerCase() === word)
      : test.text.includes(word);

  /** The tests that search and chips leave over. */
  function shown() {
    const words = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    return tests.filter(
      (test) =>
        (wanted.size === 0 || wanted.has(test.record.status)) &&
        words.every((word) => has(test, word)),
    );
  }

  function drawList() {
    const rows = shown().map((test) => {
      const { id, status } = test.record;
      const button = make("button", "", make("span", `status ${status}`, status), make("span", "id", id));
      button.type = "button";
      button.dataset.id = id;
      if (test === current) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => show(test, true));
      return make("li", "", button);
    });
    at("list").replaceChildren(...rows);
    at("shown").textContent = `${rows.length} of ${tests.length} tests`;
  }

  function drawChips() {
    const chips = ORDER.map((status) => [status, tests.filter((t) => t.record.status === status).length])
      .filter(([, count]) => count > 0)
      .map(([status, count]) => {
        const chip = make("button", "", make("span", status, `${status} ${count}`));
        chip.type = "button";
        chip.dataset.status = status;
        chip.setAttribute("aria-pressed", "false");
        chip.addEventListener("click", () => {
          if (!wanted.delete(status)) wanted.add(status);
          chip.setAttribute("aria-pressed", String(wanted.has(status)));
          drawList();
        });
        return chip;
      });
    at("chips").replaceChildren(...chips);
  }

  /** Where to begin: the rules of which the largest share of the tests failed. */
  function drawSuspects() {
    const most = data.suspects.map(({ rule, failed, judged }) => {
      const button = make("button", "", `${rule}: ${failed} of ${judged}`);
      button.type = "button";
      button.dataset.rule = rule;
      button.title = data.rules[rule] ?? "";
      button.addEventListener("click", () => {
        at("search").value = at("search").value === rule ? "" : rule;
        drawList();
        const [first] = shown();
        if (first) show(first, true);
      });
      return button;
    });
    if (most.length) at("suspects").replaceChildren("Rules, by the share of their tests that failed:", ...most);
  }

  /** A heading with what is below it, if there is anything. */
  function part(title, ...content) {
    const there = content.filter((piece) => piece !== null && piece !== undefined && piece !== "");
    return there.length ? [make("h3", "", title), ...there] : [];
  }

  const block = (text) => (text ? make("pre", "", text) : null);

  function again(test) {
    const command = block(test.again);
    command.id = "again";
    const copy = make("button", "", "Copy");
    copy.type = "button";
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(test.again);
        copy.textContent = "Copied";
      } catch {
        // A page from a file may not reach the clipboard: the text is selected instead.
        getSelection().selectAllChildren(command);
        copy.textContent = "Selected";
      }
    });
    return make("div", "again", command, copy);
  }

  function figures(list) {
    if (!list.length) return null;
    const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
    const rows = list.map(({ name, value, unit, peak }) =>
      make(
        "tr",
        "",
        make("th", "", name),
        make("td", "", `${number(value)} ${unit}`),
        make("td", "", peak ? `${number((100 * value) / peak)} % of the declared ${number(peak)} ${unit}` : ""),
      ),
    );
    return make("table", "", ...rows);
  }

  /** How many other tests found the same: mostly they have one cause. */
  function alike(test) {
    const { message } = test.record.failure ?? {};
    const count = tests.filter((other) => message && other.record.failure?.message === message).length - 1;
    return count > 0 ? make("p", "alike", `${count} of the other tests found the same.`) : null;
  }

  /** Shows one test; by hand also moves the address, so that it can be passed on. */
  function show(test, byHand) {
    current = test;
    const { record } = test;
    const exception = record.exception;
    at("detail").replaceChildren(
      make("h2", "", make("span", record.status, record.status), ` ${record.id}`),
      make("p", "", test.about ?? ""),
      ...part("Found", block(record.failure?.message), alike(test)),
      ...part("At", block(record.failure?.place)),
      ...part("During", block(record.step)),
      ...part("Not declared by the driver", block(record.missing.join(", "))),
      ...part("Run it again", again(test)),
      ...(test.rules ?? []).flatMap((rule) => part(rule, make("p", "rule", data.rules[rule] ?? ""))),
      ...part(
        "Expectation",
        exception && block(`${exception.status} until ${exception.expires}: ${exception.reason}`),
        exception?.link ? block(exception.link) : null,
      ),
      ...part("Printed", block(record.output)),
      ...part("Remarks", block(record.notes.join("\n"))),
      ...part("Figures", figures(record.figures)),
      ...part("Took", make("p", "", `${(record.micros / 1000).toFixed(1)} ms`)),
    );
    for (const button of at("list").querySelectorAll("button")) {
      if (button.dataset.id === record.id) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    if (byHand) history.replaceState(null, "", `#${record.id}`);
  }

  function byAddress() {
    const id = decodeURIComponent(location.hash.slice(1));
    return tests.find((test) => test.record.id === id);
  }

  const { driver, suite } = data;
  at("sentence").textContent = data.sentence;
  at("sentence").className = data.conclusion;
  at("driver").textContent = [
    `${driver.name} ${driver.version}${driver.vendor ? ` by ${driver.vendor}` : ""}`,
    driver.spec,
    driver.devices.map((device) => device.name).join(", "),
    `contract ${driver.contract}`,
    data.layers ? `through the layers ${data.layers}` : null,
  ].filter(Boolean).join(" · ");
  at("facts").replaceChildren(
    ...[
      `Suite ${suite.version} of ${suite.tests} tests, ${suite.hash}`,
      `Driver file ${driver.file}, ${driver.file_sha256}`,
      `Declares: ${driver.capabilities.join(", ") || "the mandatory part only"}`,
      `Seed ${data.seed}, ${data.host}, began ${new Date(data.started * 1000).toISOString()}`,
      `Digest ${data.digest}`,
    ].map((line) => make("p", "", line)),
  );
  at("search").addEventListener("input", drawList);
  addEventListener("hashchange", () => {
    const test = byAddress();
    if (test) show(test, false);
  });
  drawChips();
  drawSuspects();
  drawList();
  if (tests.length) show(byAddress() ?? tests[0], false);
  document.body.dataset.ready = "";
})();
