// Pages that were opened from a folder get no Worker from the browser, and search is one: here, a
// hidden frame does its work. zensical would fetch such a script from the web.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.terminate = () => frame.remove();
      // As a worker's messages: a copy, and not before what is going on has ended.
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
