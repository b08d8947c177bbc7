// Chats in this browser's IndexedDB, for all tabs. Turns are records of their own, so that tabs add to the same chat
// without replacing each other's turns, and images are, so that only those of an opened chat are read.
import { completed, imagesOf, newId } from "./chat_tree.js";

// Chats without their turns.
const CHATS = "chats";
// Of {chat, id, …}, the fields of a turn without the URLs of its images.
const TURNS = "turns";
// Of {chat, id, url}.
const IMAGES = "images";
// Version 1 had the images within the turns, and version 2 the turns within the chats.
const VERSION = 3;

export class ChatDatabase {
  #database;
  #others;

  constructor(database) {
    this.#database = database;
    this.#others = new BroadcastChannel(database.name);
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

  // Call a function with the id of each chat that another tab has changed.
  listen(changed) {
    this.#others.onmessage = ({ data }) => changed(data);
  }

  // All chats, without the URLs of their images.
  async chats() {
    const transaction = this.#database.transaction([CHATS, TURNS]);
    const [heads, turns] = await Promise.all([CHATS, TURNS].map((name) => done(transaction.objectStore(name).getAll())));
    const found = new Map(heads.map((head) => [head.id, { ...head, turns: {} }]));
    for (const { chat, ...turn } of turns) if (found.has(chat)) found.get(chat).turns[turn.id] = turn;
    return [...found.values()];
  }

  // One chat, without the URLs of its images; undefined if it is gone.
  async chat(id) {
    const transaction = this.#database.transaction([CHATS, TURNS]);
    const [head, turns] = await Promise.all([
      done(transaction.objectStore(CHATS).get(id)), done(transaction.objectStore(TURNS).getAll(keysOf(id))),
    ]);
    return head && { ...head, turns: Object.fromEntries(turns.map(({ chat, ...turn }) => [turn.id, turn])) };
  }

  // The URLs of a chat's images, by `image` of their attachments.
  async urls({ id }) {
    const found = await done(this.#database.transaction(IMAGES).objectStore(IMAGES).getAll(keysOf(id)));
    return new Map(found.map(({ id: image, url }) => [image, url]));
  }

  // Write a chat for the first time.
  add(chat, images) {
    return this.#write(chat.id, (transaction) => {
      transaction.objectStore(CHATS).put(headOf(chat));
      put(transaction, chat, Object.values(chat.turns), images);
    });
  }

  // Write these fields, turns and images of a chat, and remove turns; all else stays as any tab has written it. A chat
  // that another tab has removed stays removed.
  change(chat, { fields, turns, images = [], removed = [] }) {
    return this.#write(chat.id, (transaction) => {
      const heads = transaction.objectStore(CHATS);
      heads.get(chat.id).onsuccess = ({ target: { result: head } }) => {
        if (!head) return;
        heads.put({ ...head, ...fields, chosen: { ...head.chosen, ...fields.chosen }, updated: Math.max(head.updated, chat.updated) });
        put(transaction, chat, turns, images);
        for (const { id } of removed) transaction.objectStore(TURNS).delete([chat.id, id]);
        removeUnused(transaction, chat, removed);
      };
    });
  }

  remove({ id }) {
    return this.#write(id, (transaction) => {
      transaction.objectStore(CHATS).delete(id);
      for (const name of [TURNS, IMAGES]) transaction.objectStore(name).delete(keysOf(id));
    });
  }

  // Do some work in one transaction, and tell other tabs once it is complete.
  #write(id, work) {
    const transaction = this.#database.transaction([CHATS, TURNS, IMAGES], "readwrite");
    work(transaction);
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => {
        this.#others.postMessage(id);
        resolve();
      };
      transaction.onabort = () => reject(transaction.error);
    });
  }
}

function headOf({ turns, ...head }) {
  return head;
}

function put(transaction, { id: chat }, turns, images) {
  for (const { image, url } of images) transaction.objectStore(IMAGES).put({ chat, id: image, url });
  for (const turn of turns) {
    const attachments = turn.attachments?.map(({ url, ...each }) => each);
    transaction.objectStore(TURNS).put({ ...turn, ...(attachments ? { attachments } : {}), chat });
  }
}

// Remove the images of removed turns that no other turn has.
function removeUnused(transaction, chat, removed) {
  const used = new Set(imagesOf(chat).map(({ image }) => image));
  for (const { image } of imagesOf({ turns: removed })) {
    if (image && !used.has(image)) transaction.objectStore(IMAGES).delete([chat.id, image]);
  }
}

const keysOf = (id) => IDBKeyRange.bound([id], [id, []]);

function upgrade(database, transaction, oldVersion) {
  if (oldVersion < 1) database.createObjectStore(CHATS, { keyPath: "id" });
  if (oldVersion < 2) database.createObjectStore(IMAGES, { keyPath: ["chat", "id"] });
  database.createObjectStore(TURNS, { keyPath: ["chat", "id"] });
  if (oldVersion < 1) return;
  transaction.objectStore(CHATS).openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const chat = completed(cursor.value);
    // Version 2 left no URLs in turns.
    const images = imagesOf(chat).filter(({ url }) => url);
    for (const each of images) each.image = newId();
    put(transaction, chat, Object.values(chat.turns), images);
    cursor.update(headOf(chat));
    cursor.continue();
  };
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
