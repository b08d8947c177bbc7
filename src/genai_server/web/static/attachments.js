// Files that go with a message: images and recordings as data URLs, and texts, also those of PDF files.
import { pdfText } from "./pdf_text.js";

// What a file begins with, by its type. BMP has four zeros where a text has letters.
const IMAGES = [
  ["image/png", /^\x89PNG\r\n\x1a\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
  ["image/gif", /^GIF8[79]a/],
  ["image/bmp", /^BM[^]{4}\0{4}/],
];
const SOUNDS = [
  ["audio/wav", /^RIFF[^]{4}WAVE/],
  ["audio/mpeg", /^(ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb])/],
  ["audio/flac", /^fLaC/],
  ["audio/ogg", /^OggS/],
  ["audio/mp4", /^[^]{4}ftyp(M4[AB]|isom|mp4|iso)/],
  ["audio/webm", /^\x1aE\xdf\xa3/],
];
// The API's names of the types of recordings.
const FORMATS = {
  "audio/wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg", "audio/mp4": "m4a", "audio/webm": "webm",
};
const PDF = /^%PDF-/;
const HEAD_BYTES = 16;
const MAX_FILE_BYTES = 20 * 1024 * 1024;
const MAX_TEXT_BYTES = 200_000;

// A file as it goes with a message: {name, url} is an image or a recording, {name, text} a text. `heard` gives what a
// recording becomes, by its name and type. Throws Error with a sentence.
export async function attachment(file, heard) {
  const head = await file.slice(0, HEAD_BYTES).arrayBuffer().catch(() => {
    throw new Error(`${file.name} cannot be read: it may be a folder, or moved away.`);
  });
  if (startsWith(head, PDF)) return { name: file.name, text: await pdfText(file, MAX_TEXT_BYTES) };
  const image = typeOf(head, IMAGES);
  if (image) return { name: file.name, url: await imageUrl(file, image) };
  const sound = typeOf(head, SOUNDS);
  if (sound) return { name: file.name, ...await heard(file, sound) };
  const text = await textOf(file);
  if (text === null) {
    throw new Error(`${file.name} is neither an image (PNG, JPEG, WebP, GIF or BMP), a recording nor a PDF, and no text file `
      + "in UTF-8 of up to 200 kB.");
  }
  return { name: file.name, text };
}

function startsWith(head, beginning) {
  return beginning.test(String.fromCharCode(...new Uint8Array(head)));
}

// The media type of a file by its first bytes, whatever its name is; undefined for other files.
function typeOf(head, types) {
  return types.find(([, beginning]) => startsWith(head, beginning))?.[0];
}

async function imageUrl(file, type) {
  const image = new Blob([file], { type });
  const url = await dataUrl(file, type, "an image");
  try {
    (await createImageBitmap(image)).close();
  } catch {
    throw new Error(`${file.name} cannot be read as an image.`);
  }
  return url;
}

// A file as a data URL; `what` it is, in words, if it is too large. Throws Error with a sentence.
export function dataUrl(file, type, what) {
  if (file.size > MAX_FILE_BYTES) {
    throw new Error(`${file.name} has ${(file.size / 1024 / 1024).toFixed(1)} MB; ${what} may have at most 20 MB.`);
  }
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(new Blob([file], { type }));
  });
}

// A file's text; null if it is too long or not text.
async function textOf(file) {
  if (file.size > MAX_TEXT_BYTES || (file.type.startsWith("image/") && file.type !== "image/svg+xml")) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

export const isSound = ({ url = "" }) => url.startsWith("data:audio/");

// The content of a message with attachments, as the API takes it. Images and files come first, so that another question
// about the same ones has the same beginning of its prompt, which the server has cached.
export function contentOf(text, attachments = []) {
  const media = attachments.filter(({ url }) => url).map((each) => (isSound(each) ? soundPart(each)
    : { type: "image_url", image_url: { url: each.url } }));
  const whole = [...attachments.filter((each) => each.text !== undefined)
    .map((each) => `${each.name}:\n${fenced(each.text)}`), text].filter((each) => each.trim()).join("\n\n");
  if (!media.length) return whole;
  return whole ? [...media, { type: "text", text: whole }] : media;
}

function soundPart({ url }) {
  const [head, data] = url.split(",");
  return { type: "input_audio", input_audio: { data, format: FORMATS[head.slice("data:".length, head.indexOf(";"))] } };
}

// A text as a block of code, whose fence has more backticks than any line of it.
export function fenced(text) {
  const ticks = (text.match(/`+/g) ?? []).reduce((most, each) => Math.max(most, each.length), 2);
  const fence = "`".repeat(ticks + 1);
  return `${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

// Whether a value of a file is an attachment that this page can show without asking any host.
export function isAttachment(value) {
  const isData = (url) => typeof url === "string"
    && /^data:(image\/(png|jpeg|webp|gif|bmp)|audio\/(wav|mpeg|flac|ogg|mp4|webm));base64,/.test(url);
  const isFileName = (name) => typeof name === "string" && !/[/\\\0]/.test(name);
  return isFileName(value?.name) && (value.url === undefined ? typeof value.text === "string" : isData(value.url));
}
