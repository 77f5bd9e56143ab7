// The page: one picture, and what every model and gallery of the server says about it.

import { prepareCamera } from "/static/camera.js";
import { bars, code, element, failure, percent, thumbnails } from "/static/drawing.js";

const find = (id) => document.getElementById(id);
const state = { models: [], model: null, ready: false, gallery: null, picture: null, name: "picture.jpg", key: "", turn: 0, choice: 0, choosing: false };
const TOP = 5;
const RESULTS = ["classes", "maps", "overlay", "neighbours"];

// Asking.

async function ask(path, { method = "GET", body = null, signal = null } = {}) {
  const headers = state.key ? { Authorization: `Bearer ${state.key}` } : {};
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server can't be reached.");
  }
  if (answer.ok) return answer;
  let message = `The server answered with ${answer.status}.`;
  try {
    message = (await answer.json()).error.message;
  } catch { /* it was no JSON */ }
  if (answer.status === 401) find("access").open = true;
  throw new Error(message);
}

function form(fields, pictures = [[state.picture, state.name]]) {
  const made = new FormData();
  for (const [picture, name] of pictures) made.append("image", picture, name);
  for (const [name, value] of Object.entries(fields)) made.append(name, String(value));
  return made;
}

function show(id, ...children) {
  find(id).hidden = false;
  find(id).querySelector(".content").replaceChildren(...children);
}

function tell(id, path, fields, options = {}) {
  const url = `${location.origin}${path}`;
  find(id).querySelector(".code").replaceChildren(code({ url, fields, file: state.name, key: Boolean(state.key), ...options }));
}

function showFailure(id, error) {
  show(id, failure(error.message));
  find(id).querySelector(".code").replaceChildren();
}

function complain(message) {
  find("error").textContent = message;
  find("error").hidden = false;
}

// What is served. What was begun before the last choice of a model, or before the last key, is dropped when it comes.

async function begin() {
  await choosing(async (isLast) => {
    const listed = await (await ask("/v1/models")).json();
    if (!isLast()) return;
    state.models = listed.models;
    choose("model", state.models.map((model) => model.name));
    if (state.models.length) await loadModel(find("model").value, isLast);
  });
}

async function chooseModel(name) {
  await choosing((isLast) => loadModel(name, isLast));
}

async function choosing(steps) {
  const choice = ++state.choice;
  state.turn += 1;
  Object.assign(state, { ready: false, choosing: true });
  find("error").hidden = true;
  try {
    await steps(() => choice === state.choice);
  } catch (error) {
    if (choice === state.choice) fail(error);
  }
  if (choice !== state.choice) return;
  state.choosing = false;
  if (state.ready && state.picture) await look();
}

function fail(error) {
  find("status").textContent = "";
  complain(error.message);
  for (const id of RESULTS) find(id).hidden = true;
}

function choose(id, names, texts = names) {
  const kept = find(id).value;
  find(id).replaceChildren(...names.map((name, place) => element("option", { value: name }, texts[place])));
  if (names.includes(kept)) find(id).value = kept;
  const around = find(`${id}-choice`);
  if (around) around.hidden = names.length < (id === "model" || id === "gallery" ? 2 : 1);
}

async function loadModel(name, isLast) {
  const model = await (await ask(`/v1/models/${encodeURIComponent(name)}`)).json();
  if (!isLast()) return;
  state.model = model;
  choose("gallery", model.galleries);
  state.gallery = find("gallery").value || null;
  prepareMaps();
  await listClasses();
  if (!isLast()) return;
  for (const id of RESULTS) find(id).hidden = true;
  state.ready = true;
}

// A picture.

async function take(file, name) {
  if (!file) return;
  state.picture = file;
  state.name = name || file.name || "picture.png";
  find("error").hidden = true;
  const preview = find("preview");
  if (preview.src) URL.revokeObjectURL(preview.src);
  preview.hidden = false;
  preview.alt = `your picture ${state.name}`;
  preview.src = URL.createObjectURL(file);
  find("drop-hint").textContent = state.name;
  await look();
}

async function look() {
  const turn = ++state.turn;
  find("status").textContent = "Looking ...";
  find("error").hidden = true;
  if (!state.ready) {
    if (!state.choosing) await begin(); // the server was away, or wanted a key
    return; // a picture that comes while a model is chosen is looked at by that one
  }
  const able = (ability) => state.model?.abilities.includes(ability);
  const tasks = [];
  if (able("predict")) tasks.push(["classes", classesAsked = showClasses(turn)]);
  if (able("segment")) tasks.push(["overlay", showPlaces(turn, "segment")]);
  if (able("detect")) tasks.push(["overlay", showPlaces(turn, "detect")]);
  if (state.gallery) tasks.push(["neighbours", showNeighbours(turn)]);
  if (able("explain")) tasks.push(["maps", showMap(turn)]);
  const ended = await Promise.allSettled(tasks.map(([, task]) => task));
  if (turn !== state.turn) return;
  if (tasks.length && ended.every((one) => one.status === "rejected")) {
    fail(ended[0].reason); // such as of a broken picture: once, not in every part
    return;
  }
  ended.forEach((one, place) => { if (one.status === "rejected") showFailure(tasks[place][0], one.reason); });
  const said = ended.map((one) => one.value).filter(Boolean).join("; ");
  find("status").textContent = `Answered by ${state.model.name}${said && `: ${said}`}.`;
}

function modelPath(verb) {
  return `/v1/models/${encodeURIComponent(state.model.name)}/${verb}`;
}

async function showClasses(turn) {
  const fields = { top: TOP };
  const content = await (await ask(modelPath("predict"), { method: "POST", body: form(fields) })).json();
  if (turn !== state.turn) return;
  const answers = content.predictions[0].answers;
  show("classes", bars(answers.map((one) => [one.class, one.probability])));
  tell("classes", modelPath("predict"), fields);
  const names = answers.map((one) => one.class);
  choose("class", names);
  find("class-choice").hidden = find("kind").value !== "gradient";
  return `${answers[0].class}, ${percent(answers[0].probability)}`;
}

async function showPlaces(turn, verb) {
  const content = await (await ask(modelPath(verb), { method: "POST", body: form({}) })).json();
  if (turn !== state.turn) return;
  const found = content.predictions[0];
  const entries = verb === "segment"
    ? found.classes.slice(0, 12).map((one) => [one.class, one.share])
    : found.objects.filter((one) => one.probability >= 0.5).slice(0, 12).map((one) => [one.class, one.probability]);
  const told = entries.map(([name, value]) => `${name} ${percent(value)}`).join(", ") || "nothing";
  const picture = element("img", { class: "shown", alt: `your picture with what was found: ${told}`, src: `data:image/png;base64,${found.png.overlay}` });
  const list = entries.length ? bars(entries) : element("p", {}, "Nothing that it is sure of.");
  show("overlay", picture, list);
  tell("overlay", modelPath(verb), {});
  return told;
}

// Maps.

let mapAsked = null;
let classesAsked = null;

function prepareMaps() {
  classesAsked = null;
  find("class").replaceChildren(); // another model has other classes
  const maps = state.model.maps;
  if (!maps) return;
  choose("kind", maps.kinds);
  find("layer").min = 0;
  find("layer").max = Math.max(0, maps.layers.length - 1);
  find("layer").value = Math.max(0, maps.layers.indexOf(maps.shown_layer));
  find("head").max = maps.heads;
  find("head").value = 0;
  arrangeMaps();
}

function arrangeMaps() {
  const maps = state.model.maps;
  const kind = find("kind").value;
  find("layer-choice").hidden = kind !== "attention" || maps.layers.length < 2;
  find("head-choice").hidden = kind !== "attention" || maps.heads < 2;
  find("class-choice").hidden = kind !== "gradient" || !find("class").options.length;
  const layer = maps.layers[Number(find("layer").value)];
  const head = Number(find("head").value);
  find("layer-value").textContent = `${layer} (${maps.layers[0]} to ${maps.layers.at(-1)})`;
  find("head-value").textContent = head ? `${head - 1} (0 to ${maps.heads - 1})` : `mean of ${maps.heads}`;
  find("layer").setAttribute("aria-valuetext", `layer ${layer}`);
  find("head").setAttribute("aria-valuetext", head ? `head ${head - 1}` : "mean of all heads");
}

function mapFields() {
  const maps = state.model.maps;
  const fields = { kind: find("kind").value };
  if (fields.kind === "attention" && maps.layers.length) fields.layer = maps.layers[Number(find("layer").value)];
  if (fields.kind === "attention" && Number(find("head").value)) fields.head = Number(find("head").value) - 1;
  if (fields.kind === "gradient" && find("class").value) fields.class = find("class").value;
  return fields;
}

async function showMap(turn) {
  if (find("kind").value === "gradient") { // of a class of this picture
    await classesAsked?.catch(() => {});
    if (turn !== state.turn) return;
  }
  mapAsked?.abort();
  mapAsked = new AbortController();
  const fields = mapFields();
  const old = find("maps").querySelector("img.shown");
  old?.classList.add("waits");
  let answer;
  try {
    answer = await (await ask(modelPath("explain"), { method: "POST", body: form(fields), signal: mapAsked.signal })).blob();
  } catch (error) {
    if (error.name === "AbortError") return;
    throw error;
  }
  if (turn !== state.turn) return;
  const words = Object.entries(fields).map(([name, value]) => (name === "kind" ? value : `${name} ${value}`)).join(", ");
  const url = URL.createObjectURL(answer);
  const picture = element("img", { class: "shown", alt: `where the model looks in your picture: ${words}; yellow is most, blue is least`, src: url });
  picture.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  show("maps", picture);
  tell("maps", modelPath("explain"), fields, { out: "map.png" });
}

async function changeMap() {
  arrangeMaps();
  if (!state.picture || !state.ready) return;
  const turn = state.turn;
  try {
    await showMap(turn);
  } catch (error) {
    if (turn === state.turn) showFailure("maps", error);
  }
}

// The gallery.

function galleryPath(verb = "") {
  return `/v1/galleries/${encodeURIComponent(state.gallery)}${verb}`;
}

async function showNeighbours(turn) {
  const fields = { top: 8 };
  const content = await (await ask(galleryPath("/search"), { method: "POST", body: form(fields) })).json();
  if (turn !== state.turn) return;
  const found = content.results[0];
  const likely = found.probabilities.slice(0, TOP).map((one) => [one.class, one.probability]);
  const verdict = found.is_unknown
    ? element("p", {}, element("b", {}, "unknown"), ": it is like nothing in the gallery. The nearest classes are:")
    : element("p", {}, "The gallery takes it for ", element("b", { id: "gallery-label" }, found.label), ".");
  show("neighbours", verdict, bars(likely), thumbnails(found.hits));
  tell("neighbours", galleryPath("/search"), fields);
  return `the gallery says ${found.is_unknown ? "unknown" : found.label}`;
}

async function listClasses() {
  find("teach").hidden = !state.gallery;
  if (!state.gallery) return;
  const asked = state.gallery;
  let described;
  try {
    described = await (await ask(galleryPath())).json();
  } catch (error) {
    find("taught").replaceChildren(failure(error.message));
    return;
  }
  if (asked !== state.gallery) return;
  const names = Object.entries(described.classes);
  find("known").replaceChildren(...names.map(([name]) => element("option", { value: name })));
  find("classes-of-gallery").querySelector("summary").textContent = `${names.length} classes, ${described.images} pictures in the gallery`;
  find("classes-of-gallery").querySelector("ul").replaceChildren(...names.map(([name, count]) => {
    const remove = element("button", { type: "button", class: "button small" }, "Remove");
    remove.setAttribute("aria-label", `Remove the class ${name}`);
    remove.addEventListener("click", () => removeClass(name, count));
    return element("li", {}, element("span", {}, `${name} (${count})`), remove);
  }));
}

async function removeClass(name, count) {
  if (!confirm(`Remove ${name} with its ${count} pictures from the gallery?`)) return;
  try {
    await ask(`${galleryPath("/images")}?label=${encodeURIComponent(name)}`, { method: "DELETE" });
    find("taught").textContent = `${name} is removed.`;
  } catch (error) {
    find("taught").replaceChildren(failure(error.message));
    return;
  }
  await listClasses();
  find("classes-of-gallery").querySelector("summary").focus(); // the button that was pressed is gone
  if (state.picture) await look();
}

async function teach(event) {
  event.preventDefault();
  const label = find("label").value.trim();
  const pictures = [...find("examples").files].map((file) => [file, file.name]);
  if (find("with-shown").checked && state.picture) pictures.push([state.picture, state.name]);
  if (!label || !pictures.length) {
    find("taught").replaceChildren(failure("Give the class a name and at least one picture."));
    return;
  }
  const path = galleryPath("/images");
  const before = find("gallery-label")?.textContent ?? null;
  find("taught").textContent = "Adding ...";
  let added;
  try {
    added = await (await ask(path, { method: "POST", body: form({ label }, pictures) })).json();
  } catch (error) {
    find("taught").replaceChildren(failure(error.message));
    return;
  }
  const url = `${location.origin}${path}`;
  find("teach").querySelector(".code").replaceChildren(code({ url, fields: { label }, files: pictures.map(([, name]) => name), key: Boolean(state.key) }));
  find("teach-form").reset();
  await listClasses();
  if (state.picture) await look();
  const after = find("gallery-label")?.textContent ?? null;
  const change = state.picture && before !== after ? ` The answer changed from ${before ?? "unknown"} to ${after ?? "unknown"}.` : "";
  find("taught").textContent = `${added.added} added to ${label}, now ${added.images_of_label} in all.${change}`;
}

// What people do.

find("file").addEventListener("change", (event) => {
  take(event.target.files[0]);
  event.target.value = "";
});
find("preview").addEventListener("error", () => { find("preview").hidden = true; });
const drop = find("drop");
for (const name of ["dragover", "dragenter"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  take(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (file) take(file, file.name || "pasted.png");
});
find("model").addEventListener("change", (event) => chooseModel(event.target.value));
find("gallery").addEventListener("change", async (event) => {
  state.gallery = event.target.value;
  await listClasses();
  if (state.picture) await look();
});
for (const id of ["kind", "class", "layer", "head"]) find(id).addEventListener("input", changeMap);
find("map-settings").addEventListener("submit", (event) => event.preventDefault());
find("teach-form").addEventListener("submit", teach);
find("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  state.key = find("key").value.trim();
  try {
    sessionStorage.setItem("key", state.key);
  } catch { /* a browser that keeps nothing */ }
  await begin();
});
prepareCamera({ take, complain });
try {
  state.key = sessionStorage.getItem("key") ?? "";
} catch { /* a browser that keeps nothing */ }
begin();
