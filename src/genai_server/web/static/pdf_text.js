// The text of PDF files.
import { pdf } from "./libraries.js";

const MAX_PDF_BYTES = 100 * 1024 * 1024;
// Tables of the character codes of Chinese, Japanese and Korean fonts that are not embedded. pdf.js fetches those that a file names.
const CMAPS = new URL("vendor/cmaps/", import.meta.url).href;

// The text of a PDF file, with the numbers of its pages. Throws Error with a sentence, also if it has more bytes than `most`.
export async function pdfText(file, most) {
  if (file.size > MAX_PDF_BYTES) throw new Error(`${file.name} has more than 100 MB.`);
  const library = await pdf.load();
  if (!library) throw new Error(`${file.name} was not read: the program for PDF files cannot be loaded.`);
  const task = library.getDocument({
    data: await file.arrayBuffer(),
    cMapUrl: CMAPS,
    disableFontFace: true, // fonts are only for drawing
    verbosity: library.VerbosityLevel.ERRORS,
  });
  try {
    return await textOf(await task.promise, file.name, most);
  } catch (error) {
    if (error instanceof NoText) throw error;
    throw new Error(error.name === "PasswordException" ? `${file.name} is protected by a password.`
      : `${file.name} cannot be read as a PDF.`);
  } finally {
    task.destroy();
  }
}

class NoText extends Error {}

async function textOf(document, name, most) {
  const found = [];
  let bytes = 0;
  for (let number = 1; number <= document.numPages; number += 1) {
    const { items } = await (await document.getPage(number)).getTextContent();
    const text = items.map(({ str = "", hasEOL }) => (hasEOL ? `${str}\n` : str)).join("").trim();
    if (text) found.push(document.numPages > 1 ? `[page ${number}]\n${text}` : text);
    bytes += new TextEncoder().encode(text).length;
    if (bytes > most) throw new NoText(`${name} has more than ${most / 1000} kB of text: attach a part of it.`);
  }
  if (!found.length) throw new NoText(`${name} has no text; its pages may be pictures, which a model for images reads.`);
  return `${found.join("\n\n")}\n`;
}
