// Small parts that need no server: the drawer on narrow screens, the theme, copying. Loaded on every page.
"use strict";
(() => {
  const root = document.documentElement;
  const setNav = (open) => {
    root.classList.toggle("nav-open", open);
    document.querySelectorAll(".menu-btn").forEach((b) => b.setAttribute("aria-expanded", String(open)));
    if (open) document.querySelector(".rail a")?.focus();
  };
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    if (!target) return;
    if (target.closest(".menu-btn")) setNav(!root.classList.contains("nav-open"));
    else if (target.closest(".scrim")) setNav(false);
    const copy = target.closest("[data-copy]");
    if (copy) {
      const done = () => {
        const label = copy.querySelector(".block") || copy;
        const before = label.textContent;
        label.textContent = "Copied";
        setTimeout(() => { label.textContent = before; }, 1600);
      };
      const text = copy.getAttribute("data-copy") || "";
      if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => {});
    }
    const theme = target.closest("[data-theme]");
    if (theme) {
      const dark = !root.classList.contains("dark");
      document.cookie = `penstock_theme=${dark ? "dark" : "light"}; Path=/; Max-Age=31536000; SameSite=Lax`;
      root.classList.toggle("dark", dark);
      if (window.Quasar) window.Quasar.Dark.set(dark);
    }
  });
  // What an act said before it loaded the page again.
  document.addEventListener("DOMContentLoaded", () => {
    const message = sessionStorage.getItem("penstock_done");
    if (!message) return;
    sessionStorage.removeItem("penstock_done");
    const told = document.createElement("div");
    told.className = "told";
    told.setAttribute("role", "status");
    told.textContent = message;
    document.body.append(told);
    setTimeout(() => told.remove(), 6000);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && root.classList.contains("nav-open")) {
      setNav(false);
      document.querySelector(".menu-btn")?.focus();
    }
  });
})();
