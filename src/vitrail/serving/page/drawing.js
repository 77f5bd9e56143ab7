// Pieces of the page. Whatever comes from outside is set as text, never as HTML.

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("aria-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

export function percent(value) {
  return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
}

// A list of names with bars; each entry is [name, share from 0 to 1, text].
export function bars(entries) {
  return element("ol", { class: "answers" }, ...entries.map(([name, share, text]) => {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
    return element("li", {},
      element("div", { class: "line" }, element("span", {}, name), element("span", {}, text ?? percent(share))),
      element("span", { class: "bars", "aria-hidden": "true" }, bar));
  }));
}

export function thumbnails(hits) {
  return element("ul", { class: "near" }, ...hits.map((hit) => {
    const names = Object.values(hit.labels).filter((name) => name !== null);
    const name = names[0] ?? "unnamed";
    const picture = hit.thumbnail
      ? element("img", { alt: `a picture of ${name} in the gallery`, src: `data:image/jpeg;base64,${hit.thumbnail}` })
      : element("span", { class: "none" });
    return element("li", {}, element("figure", {}, picture,
      element("figcaption", {}, name, " ", element("small", {}, hit.cosine.toFixed(2)))));
  }));
}

export function failure(message) {
  return element("p", { class: "failure", role: "alert" }, message);
}

// A file of a form, whose name curl reads in quotes where it holds signs that divide its parts.
function quoteForCurl(name) {
  return /[",;\\\s]/.test(name) ? `"${name.replace(/["\\]/g, "\\$&")}"` : name;
}

function quoteForShell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// The curl and the Python that give a result: `fields` are words of the form, `file` the name of the picture.
export function code({ url, fields = {}, file, key = false, out = null, files = null }) {
  const names = files ?? [file];
  const curl = ["curl"];
  if (key) curl.push("-H 'Authorization: Bearer KEY'");
  for (const name of names) curl.push(`-F ${quoteForShell(`image=@${quoteForCurl(name)}`)}`);
  for (const [name, value] of Object.entries(fields)) curl.push(`--form-string ${quoteForShell(`${name}=${value}`)}`);
  if (out !== null) curl.push(`-o ${out}`);
  curl.push(quoteForShell(url));
  const python = [
    "import requests",
    "",
    `files = [${names.map((name) => `("image", open(${JSON.stringify(name)}, "rb"))`).join(", ")}]`,
    `answer = requests.post(${JSON.stringify(url)}, files=files, data=${JSON.stringify(fields)}` +
      `${key ? ', headers={"Authorization": "Bearer KEY"}' : ""})`,
    "answer.raise_for_status()",
    out === null ? "print(answer.json())" : `open(${JSON.stringify(out)}, "wb").write(answer.content)`,
  ];
  return element("details", {}, element("summary", {}, "The same with curl and Python"),
    ...snippet("curl", curl.join(" ")), ...snippet("Python", python.join("\n")));
}

function snippet(name, text) {
  const copy = element("button", { type: "button", class: "button small" }, "Copy");
  copy.setAttribute("aria-label", `Copy the ${name}`);
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Select and copy it";
    }
  });
  return [element("p", { class: "name" }, name, copy), element("pre", {}, element("code", {}, text))];
}
