// The camera: a dialog that shows what it sees, and takes one picture of it.

import { element } from "/static/drawing.js";

const find = (id) => document.getElementById(id);
let stream = null;
let isAsking = false;

// `take` is given the picture and its name, `complain` why there is none.
export function prepareCamera({ take, complain }) {
  if (navigator.mediaDevices?.getUserMedia) find("camera").hidden = false;
  find("camera").addEventListener("click", () => open(complain));
  find("video").addEventListener("loadeddata", allow);
  find("shoot").addEventListener("click", () => shoot(take));
  find("close-camera").addEventListener("click", close);
  find("camera-dialog").addEventListener("close", close);
}

async function open(complain) {
  if (isAsking || stream) return; // a second stream would never be stopped
  isAsking = true;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    complain("The camera can't be used: allow it in the browser, or choose a file.");
    return;
  } finally {
    isAsking = false;
  }
  find("shoot").disabled = true;
  find("video").srcObject = stream;
  find("camera-dialog").showModal();
}

// Before the first frame there is nothing to take.
function allow() {
  find("shoot").disabled = false;
  find("shoot").focus();
}

function close() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  find("video").srcObject = null;
  if (find("camera-dialog").open) find("camera-dialog").close();
}

function shoot(take) {
  const video = find("video");
  const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => take(blob, "camera.jpg"), "image/jpeg", 0.92);
  close();
}
