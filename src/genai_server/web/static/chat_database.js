// Chats in this browser's IndexedDB. Images are records of their own, so that only those of an opened chat are read.
import { imagesOf, newId, withAttachments } from "./chat.js";

const CHATS = "chats";
// Of {chat, id, url}.
const IMAGES = "images";
// Version 1 had the images within the chats.
const VERSION = 2;

export class ChatDatabase {
  #database;

  constructor(database) {
    this.#database = database;
    // A newer version of the page, in another tab, may change the database.
    database.onversionchange = () => database.close();
  }

  static async open(name) {
    const asked = indexedDB.open(name, VERSION);
    asked.onupgradeneeded = ({ oldVersion }) => upgrade(asked.result, asked.transaction, oldVersion);
    const blocked = new Promise((_, reject) => {
      asked.onblocked = () => reject(new Error("an older version of this page is open in another tab; close that and reload"));
    });
    return new ChatDatabase(await Promise.race([done(asked), blocked]));
  }

  // All chats, without the URLs of their images.
  chats() {
    return done(this.#database.transaction(CHATS).objectStore(CHATS).getAll());
  }

  // The URLs of a chat's images, by `image` of their attachments.
  async urls(chat) {
    const found = await done(this.#database.transaction(IMAGES).objectStore(IMAGES).getAll(imageKeys(chat)));
    return new Map(found.map(({ id, url }) => [id, url]));
  }

  // Write a chat and those of its images that are not written yet.
  put(chat, images) {
    return this.#write((transaction) => put(transaction, chat, images));
  }

  remove(chat) {
    return this.#write((transaction) => {
      transaction.objectStore(CHATS).delete(chat.id);
      transaction.objectStore(IMAGES).delete(imageKeys(chat));
    });
  }

  #write(work) {
    const transaction = this.#database.transaction([CHATS, IMAGES], "readwrite");
    work(transaction);
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
  }
}

function put(transaction, chat, images) {
  for (const { image, url } of images) transaction.objectStore(IMAGES).put({ chat: chat.id, id: image, url });
  transaction.objectStore(CHATS).put(withAttachments(chat, ({ url, ...each }) => [each]));
}

const imageKeys = ({ id }) => IDBKeyRange.bound([id], [id, []]);

function upgrade(database, transaction, oldVersion) {
  database.createObjectStore(IMAGES, { keyPath: ["chat", "id"] });
  if (oldVersion < 1) {
    database.createObjectStore(CHATS, { keyPath: "id" });
    return;
  }
  transaction.objectStore(CHATS).openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const chat = cursor.value;
    const images = imagesOf(chat);
    for (const each of images) each.image = newId();
    if (images.length) put(transaction, chat, images);
    cursor.continue();
  };
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
