// Small parts that need no server: the drawer on narrow screens, the theme, copying. Loaded on every page.
"use strict";
// Sends chosen files as one form; the answer is what the server says, or 0 when the connection broke or the form closed.
window.penstockUpload = (url, fields, ids, barId, most) => new Promise((done) => {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  let bytes = 0;
  for (const id of ids) {
    const input = document.getElementById(id);
    const file = input?.files[0];
    if (!file) return done({ status: 400, message: "Choose both files." });
    bytes += file.size;
    form.append(input.getAttribute("name"), file);
  }
  const told = (count) => count.toLocaleString("en-US");
  if (bytes > most) return done({ status: 413, message: `The files have ${told(bytes)} bytes; at most ${told(most)} are accepted.` });
  const bar = document.getElementById(barId);
  const request = new XMLHttpRequest();
  const broken = () => done({ status: 0, message: "The connection broke; nothing was stored. Try again." });
  request.open("POST", url);
  request.upload.addEventListener("progress", (event) => {
    if (!bar.isConnected) request.abort();
    else bar.value = event.loaded / event.total;
  });
  request.addEventListener("load", () => {
    let message = request.responseText;
    try { message = JSON.parse(message).message; } catch { message = message.slice(0, 300); }
    done({ status: request.status, message });
  });
  for (const name of ["error", "abort", "timeout"]) request.addEventListener(name, broken);
  request.send(form);
});
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
