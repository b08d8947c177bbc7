// Files that go with a message: images as data URLs, and texts.

// What a file begins with, by its type. BMP has four zeros where a text has letters.
const IMAGES = [
  ["image/png", /^\x89PNG\r\n\x1a\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
  ["image/gif", /^GIF8[79]a/],
  ["image/bmp", /^BM[^]{4}\0{4}/],
];
const PDF = /^%PDF-/;
const HEAD_BYTES = 16;
const MAX_IMAGE_BYTES = 20 * 1024 * 1024;
const MAX_TEXT_BYTES = 200_000;

// A file as it goes with a message: {name, url} is an image, {name, text} a text. Throws Error with a sentence.
export async function attachment(file) {
  const head = await file.slice(0, HEAD_BYTES).arrayBuffer().catch(() => {
    throw new Error(`${file.name} cannot be read: it may be a folder, or moved away.`);
  });
  if (startsWith(head, PDF)) {
    throw new Error(`${file.name} is a PDF, which this page cannot read: copy its text, or attach that as a text file.`);
  }
  const type = imageType(head);
  if (type) return { name: file.name, url: await imageUrl(file, type) };
  const text = await textOf(file);
  if (text === null) {
    throw new Error(`${file.name} is neither an image (PNG, JPEG, WebP, GIF or BMP) nor a text file of up to 200 kB.`);
  }
  return { name: file.name, text };
}

function startsWith(head, beginning) {
  return beginning.test(String.fromCharCode(...new Uint8Array(head)));
}

// The media type of an image by its first bytes; undefined for other files, whatever their names are.
function imageType(head) {
  return IMAGES.find(([, beginning]) => startsWith(head, beginning))?.[0];
}

async function imageUrl(file, type) {
  if (file.size > MAX_IMAGE_BYTES) {
    throw new Error(`${file.name} has ${(file.size / 1024 / 1024).toFixed(1)} MB; an image may have at most 20 MB.`);
  }
  const image = new Blob([file], { type });
  try {
    (await createImageBitmap(image)).close();
  } catch {
    throw new Error(`${file.name} cannot be read as an image.`);
  }
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(image);
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

// The content of a message with attachments, as the API takes it. Images and files come first, so that another question
// about the same ones has the same beginning of its prompt, which the server has cached.
export function contentOf(text, attachments = []) {
  const images = attachments.filter(({ url }) => url).map(({ url }) => ({ type: "image_url", image_url: { url } }));
  const whole = [...attachments.filter((each) => each.text !== undefined)
    .map((each) => `${each.name}:\n${fenced(each.text)}`), text].filter((each) => each.trim()).join("\n\n");
  if (!images.length) return whole;
  return whole ? [...images, { type: "text", text: whole }] : images;
}

// A text as a block of code, whose fence has more backticks than any line of it.
export function fenced(text) {
  const ticks = (text.match(/`+/g) ?? []).reduce((most, each) => Math.max(most, each.length), 2);
  const fence = "`".repeat(ticks + 1);
  return `${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

// Whether a value of a file is an attachment that this page can show without asking any host.
export function isAttachment(value) {
  const isImage = (url) => typeof url === "string" && /^data:image\/(png|jpeg|webp|gif|bmp);base64,/.test(url);
  const isFileName = (name) => typeof name === "string" && !/[/\\\0]/.test(name);
  return isFileName(value?.name) && (value.url === undefined ? typeof value.text === "string" : isImage(value.url));
}
