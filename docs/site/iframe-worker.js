// The search needs a Worker, and browsers create none for pages that were opened from a folder. Here
// a hidden frame replaces the Worker. Without this file, zensical would load such a script from the web.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.terminate = () => frame.remove();
      // A Worker gets a copy of a message, after the running code has ended.
      this.inside.postMessage = (message) => {
        const data = structuredClone(message);
        setTimeout(() => this.onmessage?.({ data }));
      };
      this.loaded = new Promise((resolve) => {
        const script = this.inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        this.inside.document.body.append(script);
      });
    }
    postMessage(message) {
      const data = structuredClone(message);
      this.loaded.then(() => this.inside.onmessage({ data }));
    }
  };
}
