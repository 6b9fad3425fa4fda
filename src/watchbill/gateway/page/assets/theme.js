// Sets the theme before the first paint. A classic script: a module would run after it.
"use strict";
(() => {
  const known = ["auto", "dark", "light"];
  const kept = () => {
    try { return localStorage.getItem("watchbill.theme"); } catch { return null; }
  };
  const show = (theme) => { document.documentElement.dataset.theme = theme; };
  show(known.includes(kept()) ? kept() : "auto");
  window.nextTheme = () => {
    const theme = known[(known.indexOf(document.documentElement.dataset.theme) + 1) % known.length];
    show(theme);
    try { localStorage.setItem("watchbill.theme", theme); } catch { /* private window: for this visit only */ }
    return theme;
  };
})();
