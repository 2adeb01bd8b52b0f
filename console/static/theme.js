// Chooses light or dark before the first paint: the visitor's choice, else the system's.
"use strict";
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = /(?:^|; )penstock_theme=(dark|light)/.exec(document.cookie)?.[1];
    document.documentElement.classList.toggle("dark", chosen ? chosen === "dark" : system.matches);
  };
  system.addEventListener("change", apply);
  apply();
})();
