// Runs before pytest-html's own script.
(() => {
  const { passes, media } = document.currentScript.dataset;
  if (media === "False") {
    // Each row gets a copy of this template; 5,000 video players that nobody sees take seconds.
    document.getElementById("template_results-table__tbody").content.querySelector(".media").replaceChildren();
  }
  // One click away: what was tested is more than on which machine.
  document.getElementById("environment").classList.add("hidden");
  document.getElementById("environment-header").classList.add("collapsed");
  const address = new URL(location.href);
  if (passes !== "fold" || address.searchParams.has("visible")) return;
  // pytest-html reads the shown results from the address, and writes them there itself.
  address.searchParams.set("visible", "skipped,failed,error,xfailed,xpassed,rerun");
  try {
    history.replaceState({}, null, address.href);
  } catch {
    // A page without an address of its own (a frame, a preview) shows passes too.
  }
})();
