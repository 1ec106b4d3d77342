// A mark names its setting, seed and run, and the same setting is highlighted in all pictures.
// A click keeps it so, until the next click, and shows the curves of its seeds.
(() => {
  const settings = JSON.parse(document.getElementById("settings").textContent);
  const tip = document.getElementById("tip");
  const marks = new Map();
  for (const mark of document.querySelectorAll("[data-s]")) {
    for (const setting of mark.dataset.s.split(" ")) {  // a cell of a table has several
      if (!marks.has(setting)) marks.set(setting, []);
      marks.get(setting).push(mark);
    }
  }
  let shown = null, kept = false;

  const trial = ([seed, final, run, number]) => `seed ${seed}: ${final} (trial ${number}, in ${run})`;
  const some = (lines, what) => lines.length > 8
    ? [...lines.slice(0, 8), `... and ${lines.length - 8} ${what} more`] : lines;
  const words = ({s, t}) => {
    const those = s.split(" ").map((one) => settings[one]);
    const {name, score, trials} = those[0];
    if (those.length > 1) return some(those.map((one) => `${one.name}: ${one.score}`), "settings");
    if (t !== undefined) return [name, trial(trials[t]), `mean return ${score}`];
    return [name, `mean return ${score}`, ...some(trials.map(trial), "seeds")];
  };

  const hide = () => {
    for (const one of shown?.split(" ") ?? []) {
      for (const mark of marks.get(one)) mark.classList.remove("on");
    }
    shown = null;
    tip.hidden = true;
  };

  const show = (mark, x, y) => {
    hide();
    shown = mark.dataset.s;
    for (const one of shown.split(" ")) {
      for (const other of marks.get(one)) other.classList.add("on");
    }
    tip.textContent = words(mark.dataset).join("\n");
    tip.hidden = false;
    const {width, height} = tip.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
    const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  };

  const open = (setting) => {
    for (const group of document.querySelectorAll(".seeds")) {
      group.classList.toggle("open", group.dataset.of === setting);
    }
  };

  const at = (event) => event.target.closest?.("[data-s]");
  addEventListener("pointerover", (event) => {
    if (kept) return;
    const mark = at(event);
    if (mark) show(mark, event.clientX, event.clientY);
    else hide();
  });
  addEventListener("focusin", (event) => {
    const mark = at(event), box = mark?.getBoundingClientRect();
    if (mark && !kept) show(mark, box.left + 40, box.bottom);
  });
  addEventListener("click", (event) => {
    const mark = at(event);
    kept = Boolean(mark) && !(kept && mark.dataset.s === shown);
    if (kept) show(mark, event.clientX, event.clientY);
    else hide();
    open(kept ? mark.dataset.s : "");
  });
  addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});
})();
